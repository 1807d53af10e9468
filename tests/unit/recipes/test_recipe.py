"""The recipe's parts: documents, matched micro-batches, gradients, measures, and a run that is taken up again."""

from __future__ import annotations

from shutil import copytree

import pytest
import torch
from scripts.recipes.tiny.corpus import Document, encode, micro_batches
from scripts.recipes.tiny.household import Household
from scripts.recipes.tiny.measure import measure, reads
from scripts.recipes.tiny.model import make_model
from scripts.recipes.tiny.optimise import Threads, batch_loss, orthogonalise
from scripts.recipes.tiny.recipe import Recipe, Training, batches, draw_pool
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.evaluation.skills import SKILLS
from turnwise.models.shipped import ASSETS, tiny_path
from turnwise_worlds.household.environment import HouseholdEnv

RECIPE = Recipe(steps=8, reading=8, settling=2, demonstrations=4, skills=4, hidden=48, layers=2, mlp=64)
ENV = HouseholdEnv(horizon=3)
MIXTURE = Household(ENV)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSETS)


def test_only_the_answer_and_its_end_have_full_weight(tokenizer):
    messages = [{"role": "user", "content": "go on"}, {"role": "assistant", "content": "go to desk 1"}]
    document = encode(messages, tokenizer, other=0.25)
    assert tokenizer.decode(document.ids) == tokenizer.apply_chat_template(messages, tokenize=False)
    answer = [i for i, w in zip(document.ids, document.weights, strict=True) if w == 1.0]
    assert tokenizer.decode(answer) == "go to desk 1<|im_end|>"
    assert set(document.weights) == {0.25, 1.0}


def test_micro_batches_hold_every_document_once_and_sort_by_length():
    documents = [Document([0] * n, [1.0] * n) for n in (9, 1, 5, 7, 3, 5)]
    parts = micro_batches(documents, 3)
    lengths = [[len(d.ids) for d in part] for part in parts]
    assert lengths == [[1, 3, 5, 5], [7], [9]]  # 30 tokens: a part closes when 10, then 20 have passed


@pytest.mark.parametrize("pool", [0, 1])  # of imitation, of reading
def test_threads_give_the_gradient_of_the_weighted_mean(tokenizer, pool):
    model = make_model(RECIPE, tokenizer)
    parts = draw_pool(MIXTURE, tokenizer, RECIPE, pool)[0]
    loss = Threads(2).gradients(model, parts)
    threaded = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    sums = [batch_loss(model, [document]) for part in parts for document in part]  # one by one: no padding at all
    whole = sum(s for s, _ in sums) / sum(w for _, w in sums)
    whole.backward()
    assert loss == pytest.approx(float(whole.detach()), rel=1e-5)
    for parameter, other in zip(model.parameters(), threaded, strict=True):
        assert torch.allclose(parameter.grad, other, atol=1e-6)


@pytest.mark.slow  # it starts two interpreters
def test_documents_do_not_depend_on_who_draws_them_or_on_where_a_run_is_taken_up(tokenizer):
    wanted = [step for number in range(3) for step in draw_pool(MIXTURE, tokenizer, RECIPE, number)]
    assert list(batches(MIXTURE, tokenizer, RECIPE, 3, workers=2)) == wanted[3:]


def test_orthogonalised_matrices_keep_their_directions():
    torch.manual_seed(0)
    left, right = torch.linalg.qr(torch.randn(3, 6, 4))[0], torch.linalg.qr(torch.randn(3, 4, 4))[0]
    moved = orthogonalise(left @ torch.diag(torch.tensor([3.0, 2.0, 1.0, 0.5])) @ right)
    core = left.mT @ moved @ right.mT  # diagonal where the singular vectors are kept
    assert torch.allclose(core, torch.diag_embed(torch.diagonal(core, dim1=1, dim2=2)), atol=1e-3)
    assert torch.all((torch.linalg.svdvals(moved) > 0.6) & (torch.linalg.svdvals(moved) < 1.3))


def test_a_random_policy_wins_nothing_and_every_measure_is_reported(tokenizer):
    model = make_model(RECIPE, tokenizer)
    found = measure(model, tokenizer, {"household": ENV}, tasks=3, items=2, max_tokens=24)
    assert set(found) == {"worlds", "skills"} and set(found["skills"]) == set(SKILLS)
    for mode in ("greedy", "sampled"):
        there = found["worlds"]["household"][mode]
        assert (there["success"], there["turns"]) == (0, 3)
        assert there["inadmissible"] == 1  # a random policy writes no command
    assert model.training and model.config._attn_implementation == "sdpa"  # training goes on as before


def test_the_shipped_policy_reads_lists_and_a_random_one_does_not(tokenizer):
    env = HouseholdEnv()
    shipped = AutoModelForCausalLM.from_pretrained(tiny_path())
    assert reads(shipped, tokenizer, env, tasks=24) > 0.9
    assert 0.3 < reads(make_model(RECIPE, tokenizer), tokenizer, env, tasks=24) < 0.7


@pytest.mark.slow  # each start draws its documents in a process of its own
def test_a_run_taken_up_again_ends_with_the_same_weights(tmp_path, tokenizer):
    def keep_the_half(run: Training) -> dict:
        if run.step == 10:  # within the second stretch
            copytree(run.folder, tmp_path / "half")
        return {}

    whole = Training(RECIPE, MIXTURE, tokenizer, tmp_path / "whole")
    whole.train(keep_the_half, every=5)
    again = Training(RECIPE, MIXTURE, tokenizer, tmp_path / "half")
    assert again.load() and again.step == 10
    again.train(lambda run: {}, every=5)
    assert (again.step, again.tokens) == (whole.step, whole.tokens) == (18, whole.tokens)
    for mine, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other)
