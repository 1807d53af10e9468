"""Out-of-domain suites that are environments: played aside from the run, and compared on the items that both sides have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.schema import build, compose_config
from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.evaluation.suites import Answer, Evaluation, play_suite
from turnwise.models.policy import load_policy
from turnwise.models.shipped import ASSETS
from turnwise.rollouts.player import Player
from turnwise.training.evaluate import out_of_domain
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.search import SearchEnv

CONF = Path(__file__).parents[3] / "conf"


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


def test_only_items_of_both_sides_are_compared() -> None:
    def told(**scores: float) -> Evaluation:
        return Evaluation(answers=[Answer("chores", item, score, "", "", "") for item, score in scores.items()])

    found = out_of_domain(told(a=1, b=0, c=1), told(b=1, c=1, d=0))
    assert (found["base"], found["after"], found["items"]) == ({"chores": 50.0}, {"chores": 100.0}, {"chores": 2})
    assert out_of_domain(told(a=1), told(b=1)) == {}


@pytest.mark.extra("reasoning_gym")
@pytest.mark.parametrize("name", ["aiw", "gcd"])
def test_the_suites_of_reasoning_are_environments(name: str) -> None:
    cfg = compose_config(["method=grpo", "eval=reasoning"], CONF, read=READ)
    check_config(cfg)
    assert [task.subset for task in build(cfg, "eval").suites[name].tasks("seen", 4)] == [name] * 4
