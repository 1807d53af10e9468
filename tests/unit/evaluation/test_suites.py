"""Suites, and fresh tasks for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.errors import InputError
from turnwise.evaluation.base_divergence import General, counted, general_answers
from turnwise.evaluation.stats import pooled
from turnwise.evaluation.suites import fresh_tasks, play_suite
from turnwise.models.policy import load_policy
from turnwise.rollouts.player import Player
from turnwise.shipped import ASSETS, tiny_path
from turnwise.types import Task
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.search import SearchEnv

# -- fresh tasks -------------------------------------------------------------------------------------------------------


def _data(tasks: Any) -> list[str]:
    return [str(sorted(task.data.items())) for task in tasks]


@pytest.mark.parametrize("split", ["seen", "unseen"])
def test_questions_of_another_seed_are_none_of_the_first(split: str) -> None:
    environment = SearchEnv("tiny")
    first, plain = environment.tasks(split, 64, 0), environment.tasks(split, 64, 1)
    assert set(_data(first)) & set(_data(plain))  # another seed alone is not enough
    found = fresh_tasks(environment, split, 64, 1)
    assert len(found) == 64 and len({task.id for task in found}) == 64
    assert not set(_data(first)) & set(_data(found))


def test_tasks_are_compared_by_what_they_hold() -> None:
    """The same task under another id is not fresh."""
    base = [Task("e", f"a/{i}", "seen", {"n": i}) for i in range(4)]
    again = [replace(task, id=f"b/{task.id}") for task in reversed(base)] + [Task("e", "b/9", "seen", {"n": 9})]
    environment = SimpleNamespace(tasks=lambda split, count, seed: (again if seed else base)[:count])
    assert [task.data["n"] for task in fresh_tasks(environment, "seen", 2, 1)] == [3, 2]
    with pytest.raises(InputError, match=r"eval\.seed=1"):
        fresh_tasks(environment, "seen", 4, 1)


def test_a_suite_is_played_greedily_beside_the_environment_of_the_run() -> None:
    model, tokenizer = load_policy(ASSETS)
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(chat.stop_ids)
    engine.load_weights(model, version=0)
    world: Any = SearchEnv("tiny", countries=4)
    player = Player(engine, world, chat, Sampling(max_tokens=8), max_turns=1)
    suite = HouseholdEnv(horizon=3)
    first, again = (play_suite(player, "chores", suite, 3, 0) for _ in range(2))
    assert first == again and player.environment is world and player.tally.turns == 0
    assert [answer.item for answer in first] == [f"chores/{task.id}" for task in suite.tasks("seen", 3)]
    assert all(answer.suite == "chores" and answer.score in (0, 1) and answer.answer for answer in first)


# -- general -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def general(cache: Path) -> General:
    return general_answers(str(tiny_path()), "float32", cache, 6)


@pytest.fixture(scope="module")
def moved() -> Any:
    model, _ = load_policy(tiny_path(), rank=4, alpha=8)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.05)
    return model


def test_the_base_does_not_diverge_from_itself(general: General) -> None:
    rows = general.divergence(load_policy(tiny_path(), rank=4, alpha=8)[0])  # a new adapter is empty
    assert len(rows) == 6
    assert pooled(counted(rows, "kl")) == pytest.approx(0, abs=1e-5) and pooled(counted(rows, "same")) == 1


def test_the_divergence_is_that_of_a_plain_forward_pass(general: General, moved: Any) -> None:
    base, _ = load_policy(tiny_path())
    for row, found in enumerate(general.divergence(moved)):
        begin, length = int(general.begin_B[row]), int(general.length_B[row])
        ids = general.ids_BS[row, :length][None]
        with torch.no_grad():
            p, q = (model(input_ids=ids).logits[0, begin - 1 : length - 1].log_softmax(-1) for model in (base, moved))
        assert found.tokens == length - begin
        assert found.kl == pytest.approx(float((p.exp() * (p - q)).sum()), rel=1e-3)
        assert found.same == int((p.argmax(-1) == q.argmax(-1)).sum())
        assert found.kl > 0


def test_answers_are_sampled_once(general: General, cache: Path) -> None:
    (file,) = cache.glob("general-*.safetensors")
    written = file.stat().st_mtime_ns
    again = general_answers(str(tiny_path()), "float32", cache, 6)
    assert torch.equal(again.ids_BS, general.ids_BS) and file.stat().st_mtime_ns == written
