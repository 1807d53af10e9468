from __future__ import annotations

import asyncio

from turnwise.algo.rewards.actions import Exact, Functional, ToolCalls
from turnwise.rollouts.collect import Experience
from turnwise.rollouts.environment_steps import Answers
from turnwise.rollouts.verdicts import Episodes, Verdicts
from turnwise.training.metrics import count_verdicts, verifier_metrics
from turnwise.types import RolloutTree, State, Task, Turn
from turnwise_worlds.household import HouseholdEnv


def local(env, *verdicts, invalid=()):
    """A state whose actions were judged (functional, strict)."""
    tree = RolloutTree(State(f"{env}/{verdicts}", Task(env, "t", "train"), (1,)), invalid=set(invalid))
    for functional, strict in verdicts:
        tree.turns.append(Turn(-1, [1], [0.0], "a", info={"functional": functional, "strict": strict}))
    return tree


def experience(*trees, reward=Functional()):  # noqa: B008 - a frozen dataclass without fields
    return Experience(list(trees), [reward(tree) for tree in trees])


HOUSE = local("household", (1.0, 1.0), (1.0, 0.0), (1.0, 0.0), (0.0, 0.0))
SHELL = local("terminal", (1.0, 0.0), (0.0, 0.0))


def test_shares_and_miss_rates_by_hand():
    counts = count_verdicts(experience(HOUSE, SHELL))
    assert verifier_metrics(counts) == {
        "verifier/accepted": 4 / 6,
        "verifier/exact": 1 / 6,
        "verifier/truncated": 0.0,
        "verifier/miss_rate": 3 / 4,
        "verifier/miss_rate/household": 2 / 3,
        "verifier/miss_rate/terminal": 1.0,
    }


def test_an_action_that_was_cut_off_is_paid_nothing_and_counted():
    env = HouseholdEnv()
    (task,) = env.tasks("train", 1)
    action = next(m["content"] for m in env.demonstrate(task).messages if m["role"] == "assistant")
    tree = RolloutTree(State("s", task, (1,), expert=action))
    tree.turns = [Turn(-1, [1], [0.0], action, truncated=cut) for cut in (False, True, False, True)]
    verdicts = Verdicts(Episodes(env))
    for turn in tree.turns:
        asyncio.run(verdicts.judge(tree.state, turn, Answers(0, None), False))
    for reward in (Functional(), Exact()):
        assert reward(tree)["total"] == [1.0, 0.0, 1.0, 0.0]
        metrics = verifier_metrics(count_verdicts(experience(tree, reward=reward)))
        assert metrics["verifier/truncated"] == metrics["verifier/accepted"] == 1 / 2
    called = RolloutTree(State("d", Task("", "t", "train"), (1,), expert="no call"), tree.turns)
    assert verifier_metrics(count_verdicts(experience(called, reward=ToolCalls())))["verifier/truncated"] == 1 / 2


def test_a_failed_world_judges_nothing():
    broken = local("household", (1.0, 1.0), (0.0, 0.0), invalid={1})
    broken.turns[1].info.clear()
    assert count_verdicts(experience(broken)) == {
        "household/judged": 1,
        "household/accepted": 1,
        "household/exact": 1,
        "household/missed": 0,
        "household/truncated": 0,
    }
