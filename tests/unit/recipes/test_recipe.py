"""The recipe's parts: documents, matched micro-batches, gradients, measures, and a run that is taken up again."""

from __future__ import annotations

from shutil import copytree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripts.recipes.tiny.corpus import Document, encode, micro_batches, skill_conversations
from scripts.recipes.tiny.household import Household
from scripts.recipes.tiny.measure import figures, lists_seen, measure, reads
from scripts.recipes.tiny.model import make_model
from scripts.recipes.tiny.optimise import Threads, batch_loss, orthogonalise, schedule
from scripts.recipes.tiny.recipe import Recipe, Training, batches, draw_pool
from scripts.recipes.tiny.tokenizer import build_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.evaluation.skills import SKILLS
from turnwise.evaluation.suites import Episode
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


def test_skills_come_in_equal_shares():
    prompts = [m[0]["content"] for m in skill_conversations(80, seed=3)]
    assert (
        sum(p.startswith("Solve") for p in prompts) == sum(p.startswith("Given") for p in prompts) == 80 / len(SKILLS)
    )


def test_micro_batches_hold_every_document_once_and_sort_by_length():
    documents = [Document([0] * n, [1.0] * n) for n in (9, 1, 5, 7, 3, 5)]
    parts = micro_batches(documents, 3)
    lengths = [[len(d.ids) for d in part] for part in parts]
    assert lengths == [[1, 3, 5, 5], [7], [9]]  # 30 tokens: a part closes when 10, then 20 have passed


@given(st.lists(st.integers(1, 60), min_size=5, max_size=30), st.integers(1, 5))
def test_no_micro_batch_is_empty_however_uneven_the_lengths(lengths, parts):
    found = micro_batches([Document([0] * n, [1.0] * n) for n in lengths], parts)
    assert len(found) == parts and all(found)
    assert [len(d.ids) for part in found for d in part] == sorted(lengths)


def test_too_few_documents_are_refused():
    with pytest.raises(ValueError, match="1 documents cannot fill 2 micro-batches"):
        micro_batches([Document([0], [1.0])], 2)


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


def test_schedule_rises_stays_and_falls():
    assert [schedule(s, 1000, warmup=50, decay=0.3) for s in (0, 24, 49, 700, 850, 1000)] == [
        0.02,
        0.5,
        1,
        1,
        0.5,
        0.02,
    ]


def test_a_random_policy_wins_nothing_and_every_measure_is_reported(tokenizer):
    model = make_model(RECIPE, tokenizer)
    found = measure(model, tokenizer, {"household": ENV}, tasks=3, items=2, max_tokens=24)
    assert set(found) == {"worlds", "skills"} and set(found["skills"]) == set(SKILLS)
    for mode in ("greedy", "sampled"):
        there = found["worlds"]["household"][mode]
        assert (there["success"], there["turns"]) == (0, 3)
        assert there["inadmissible"] == 1  # a random policy writes no command
    assert model.training and model.config._attn_implementation == "sdpa"  # training goes on as before


def test_lists_count_until_something_is_picked_up():
    texts = ["room", "go a", "you see a cup 1", "go b", "It is closed.", "open b", "you see a pen 1", "take pen 1"]
    texts += ["You pick up the pen 1", "go c", "you see a mug 1", "go d"]
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(texts)]
    assert lists_seen(messages) == [3, 7]


def test_the_shipped_policy_reads_lists_and_a_random_one_does_not(tokenizer):
    env = HouseholdEnv()
    shipped = AutoModelForCausalLM.from_pretrained(tiny_path())
    assert reads(shipped, tokenizer, env, tasks=24) > 0.9
    assert 0.3 < reads(make_model(RECIPE, tokenizer), tokenizer, env, tasks=24) < 0.7


def test_the_figures_of_episodes_by_hand():
    def episode(split, success, *talk):
        messages = [{"role": "user", "content": "You are in a room."}]
        for action, answer in talk:
            messages += [{"role": "assistant", "content": action}, {"role": "user", "content": answer}]
        return Episode(split, f"{split}/0", "greedy", 0, success, len(talk), messages)

    nothing = ("fly", "Nothing happens.")
    found = figures([episode("seen", True, ("look", "A desk."), nothing, nothing), episode("unseen", False, nothing)])
    assert found == {"success": 50, "seen": 100, "unseen": 0, "inadmissible": 0.75, "repeated": 0.25, "turns": 2}


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


def test_every_step_lies_in_its_stretch():
    first, second, third = RECIPE.stretches
    assert [RECIPE.stretch(s) for s in (0, 7, 8, 15, 16, 17)] == [
        *((first, 0), (first, 7)),
        *((second, 0), (second, 7)),
        *((third, 0), (third, 1)),
    ]
    with pytest.raises(IndexError, match="18 steps"):
        RECIPE.stretch(18)
    assert second.share(0) == 1 / 20 and third.share(1) == pytest.approx(0.1)  # 0.5 * 2 / 10, before the rate falls


def test_a_new_tokenizer_knows_frequent_words_whole():
    texts = ["go to drawer 12", "open the toiletpaperhanger"] * 3
    tokenizer = build_tokenizer(texts, "{{ messages }}", size=300, merged=260)
    for word in (" drawer", " 12", "go", " toiletpaperhanger", "<tool_call>", "<|im_end|>"):
        assert len(tokenizer.encode(word, add_special_tokens=False)) == 1
    assert tokenizer.decode(tokenizer.encode("go to é\n\n 7")) == "go to é\n\n 7"
    with pytest.raises(ValueError, match="size 260 must exceed merged 256"):
        build_tokenizer(texts, "", size=260, merged=256)


def test_senseless_settings_are_refused():
    with pytest.raises(ValueError, match="head=48 and hidden=100"):
        Recipe(hidden=100)
    with pytest.raises(ValueError, match="family must be one of qwen3, llama, got gpt"):
        Recipe(family="gpt")
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        Recipe(steps=0)
    with pytest.raises(ValueError, match="threads=2 demonstrations, got 1"):
        Recipe(demonstrations=3)  # the last stretch has half of them
    with pytest.raises(ValueError, match="multiples of 8, got 700 and 200"):
        Recipe(steps=700)
