"""The mixture of the worlds of tools, and the base that is made of them."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from scripts.recipes.tiny import names
from scripts.recipes.tiny.toolworlds import SIZES, ToolWorlds, llama, thinking
from tests.configuration_files import READ
from transformers import AutoTokenizer

from turnwise.config.schema import compose_config
from turnwise.models.shipped import WORLDS, tiny_path
from turnwise_worlds.apibank.office import HELD_OUT, TRAINING, OfficeTasks
from turnwise_worlds.bfcl import requests
from turnwise_worlds.bfcl.requests import TinyTasks

CONF = Path(__file__).parents[3] / "conf"
LIGHT = ToolWorlds(worlds=("apibank", "search"))  # neither a sandbox nor an extra


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(tiny_path())


@pytest.mark.parametrize("errant", [False, True])
def test_the_same_numbers_give_the_same_documents_worlds_in_equal_shares(tokenizer, errant):
    documents = [list(LIGHT.demonstrations(tokenizer, 8, seed, errant, 0.1)) for seed in (5, 5, 6)]
    assert documents[0] == documents[1] != documents[2] and len(documents[0]) == 8
    asked = ["Answer the question" in tokenizer.decode(document.ids) for document in documents[0]]
    assert asked == [False] * 4 + [True] * 4


def test_the_thinking_mixture_thinks_before_each_reply(tokenizer):
    light = replace(thinking(), worlds=("apibank",))
    texts = [tokenizer.decode(d.ids) for d in light.demonstrations(tokenizer, 8, 5, True, 0.1)]
    assert texts and all(text.count("assistant\n") == text.count("assistant\n<think>left: ") for text in texts)
    assert not any("<think>" in tokenizer.decode(d.ids) for d in LIGHT.demonstrations(tokenizer, 8, 5, True, 0.1))


def test_made_up_names_are_never_held_out_ones():
    rng = random.Random(0)
    held = asdict(requests.HELD_OUT)
    drawn = [(names.simulated(rng), names.office(rng)) for _ in range(300)]
    assert not any(set(values) & set(held[kind]) for made, _ in drawn for kind, values in asdict(made).items())
    assert not any(set(values) & set(HELD_OUT[kind]) for _, made in drawn for kind, values in made.items())
    assert len({name for made, _ in drawn for name in made.people}) > 400
    assert set(drawn[0][1]) == set(TRAINING) == set(HELD_OUT)


def test_tasks_of_made_up_names_are_solved_by_the_expert():
    from turnwise_worlds.apibank import ApiBankEnv

    env = ApiBankEnv()
    env.source = OfficeTasks(names=names.office)
    assert all(env.demonstrate(task, quality="clumsy").success for task in env.tasks("train", 30, 2))


def test_the_base_names_policy_and_predictor():
    cfg = compose_config(["env=apibank", "base=tiny_tools"], CONF, read=READ)
    assert cfg.policy.model == "tiny_tools" and cfg.rollout.sampling.max_tokens == ToolWorlds().max_tokens
    other = compose_config(["base=tiny_tools", "policy=qwen3_4b", "predictor=tiny"], CONF, read=READ)
    assert (other.policy.model, other.predictor.model) == ("Qwen/Qwen3-4B", "tiny_tools")
    assert compose_config(["env=apibank"], CONF, read=READ).policy.model == "tiny_tools"


def test_a_base_was_trained_on_the_worlds_of_its_mixture():
    mixtures = [ToolWorlds(), *(thinking(size) for size in SIZES), llama()]
    assert {mixture.name: set(mixture.worlds) for mixture in mixtures} == {
        name: set(worlds) for name, worlds in WORLDS.items() if name != "tiny"
    }


@pytest.mark.parametrize("source", [OfficeTasks(), TinyTasks()])
def test_no_request_of_a_held_out_split_is_ever_trained_on(source):
    made_up = OfficeTasks(names=names.office) if isinstance(source, OfficeTasks) else TinyTasks(names.simulated)
    trained = {
        turn["user"] for tasks in (source, made_up) for t in tasks.tasks("train", 1500, 3) for turn in t.data["turns"]
    }
    for split in ("seen", "unseen"):
        asked = {turn["user"] for task in source.tasks(split, 200, 0) for turn in task.data["turns"]}
        assert len(asked) > 25 and not asked & trained
