"""Metrics of branches and of verdicts."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from turnwise.methods.pivotrl import Exact, Functional
from turnwise.methods.reward import ToolCalls
from turnwise.rollouts.collect import Experience
from turnwise.rollouts.episodes import EnvironmentCalls, Episodes
from turnwise.rollouts.verdicts import Verdicts
from turnwise.training.group_metrics import (
    GATE,
    branch_contrast,
    branch_metrics,
    continuation_places,
    gate_counts,
    gate_result,
    group_verdict_counts,
    trajectories,
    verifier_metrics,
)
from turnwise.training.recorder import Gathered, Recorder
from turnwise.types import Credit, GateDecision, RolloutTree, State, Task, Turn
from turnwise_worlds.household import HouseholdEnv

# -- branches ----------------------------------------------------------------------------------------------------------


def tree_of(*parents: int) -> RolloutTree:
    turns = [Turn(parent=parent, action_ids=[1], logprobs=[-1.0]) for parent in parents]
    return RolloutTree(State(id="s", task=Task("toy", "train/0", "train"), ids=(1, 2)), turns)


def grown() -> RolloutTree:
    """Rollouts 0-2-4 and 1-3; turn 0 branched at once (5-6), turn 2 twice (7, 8). Leaves 3, 4, 6, 7, 8."""
    return tree_of(-1, -1, 0, 1, 2, 0, 5, 2, 2)


def test_a_rollout_costs_one_and_a_continuation_one_half() -> None:
    assert trajectories(grown()) == 2 + 3 / 2
    assert trajectories(tree_of(-1, -1, -1, 0, 1, 2)) == 3
    assert trajectories(tree_of()) == 0


def test_contrast_counts_leaves_below_branched_turns() -> None:
    # below turn 0: 4, 6, 7, 8; below turn 2: 4, 7, 8
    assert branch_contrast(grown(), [1, 1, 0, 1, 1]) == (7, 4)  # 6 alone lost: turn 0 disagrees, turn 2 does not
    assert branch_contrast(grown(), [0, 1, 1, 0, 1]) == (7, 7)
    assert branch_contrast(grown(), [0, 1, 1, 1, 1]) == (7, 0)


def test_a_turn_below_which_one_rollout_is_valid_is_no_branch_point() -> None:
    tree = grown()
    tree.invalid = {6}  # turn 0 has one child left; below turn 2 are 4, 7 and 8
    assert continuation_places(tree) == [(2, 2 / 3), (2, 2 / 3)]
    assert branch_contrast(tree, [0, 1, math.nan, 1, 1]) == (3, 0)
    assert branch_contrast(tree, [0, 1, math.nan, 0, 1]) == (3, 3)
    tree.invalid = {6, 7}  # and one of three has failed: turn 2 still branches
    assert branch_contrast(tree, [0, 1, math.nan, math.nan, 0]) == (2, 2)
    pair = tree_of(-1, 0, 0)
    pair.invalid = {2}
    assert continuation_places(pair) == [] and branch_contrast(pair, [1.0, math.nan]) == (0, 0)


def test_rollouts_whose_environment_failed_are_not_counted() -> None:
    tree = tree_of(-1, -1, 0, 0, 1)  # a continuation after turn 0 and its restart; rollout 1-4, and its restart below
    tree.turns.append(Turn(parent=-1, action_ids=[1], logprobs=[-1.0]))
    tree.invalid = {2, 4}
    assert trajectories(tree) == 2 and continuation_places(tree) == []
    metrics = branch_metrics(Experience([tree], [{"total": [math.nan, 1.0, math.nan, 0.0]}], []))
    assert (metrics["train/roots_per_group"], metrics["train/continuations"]) == (2, 0)


def test_metrics_of_a_collection() -> None:
    flat = tree_of(-1, -1, -1, -1)
    rewards = [{"total": [1.0, 1.0, 0.0, 1.0, 1.0]}, {"total": [1.0] * 4}]
    metrics = branch_metrics(Experience([grown(), flat], rewards, [], skipped=5))
    assert metrics["train/states_skipped"] == 5
    assert metrics["train/states_active"] == pytest.approx(2 / 7)
    assert metrics["train/roots_per_group"] == 3
    assert metrics["train/continuations"] == 3
    assert metrics["train/effective_prefixes"] == pytest.approx(4 / 7)
    assert metrics["branch/depth"] == pytest.approx(5 / 3)
    assert metrics["branch/position"] == pytest.approx(5 / 9)
    assert "branch/depth" not in branch_metrics(Experience([flat], rewards[1:], []))


# -- verdicts ----------------------------------------------------------------------------------------------------------


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
    counts = group_verdict_counts(experience(HOUSE, SHELL))
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
        asyncio.run(verdicts.judge(tree.state, turn, EnvironmentCalls(0, None), False))
    for reward in (Functional(), Exact()):
        assert reward(tree)["total"] == [1.0, 0.0, 1.0, 0.0]
        metrics = verifier_metrics(group_verdict_counts(experience(tree, reward=reward)))
        assert metrics["verifier/truncated"] == metrics["verifier/accepted"] == 1 / 2
    called = RolloutTree(State("d", Task("", "t", "train"), (1,), expert="no call"), tree.turns)
    assert verifier_metrics(group_verdict_counts(experience(called, reward=ToolCalls())))["verifier/truncated"] == 1 / 2


# -- gate savings ------------------------------------------------------------------------------------------------------


def rollouts(*lengths: int, ended: bool = True) -> RolloutTree:
    """A group of rollouts of so many turns, two tokens each, unbranched."""
    tree = RolloutTree(State("s", Task("toy", "t", "train"), (1,)))
    for length in lengths:
        parent = -1
        for at in range(length):
            done = ended and at + 1 == length
            tree.turns.append(Turn(parent, [5, 6], [-1.0, -1.0], observation_ids=[] if done else [7], done=done))
            parent = len(tree.turns) - 1
    return tree


def looked(tree: RolloutTree, step: int, stop: bool) -> RolloutTree:
    tree.looks, tree.stopped = [GateDecision(step, {}, stop)], stop
    return tree


PASSED = looked(rollouts(5, 3, 2), step=2, stop=False)  # two rollouts went on, for 3 and 1 turns: 2 turns each
CUT = looked(rollouts(2, 2, 2, ended=False), step=2, stop=True)
SHORT = rollouts(1, 1)  # ended before the gate looked


def test_the_saving_is_what_rollouts_that_passed_took_after_the_look() -> None:
    counts = gate_counts([PASSED, CUT, SHORT])
    assert counts == {f"{GATE}{name}": value for name, value in
                      {"groups": 3, "cut": 1, "looked": 2, "unstopped": 0, "open": 3, "passed": 2, "turns": 4,
                       "tokens": 8}.items()}  # fmt: skip
    assert gate_result(counts) == {
        "groups": 3,
        "looked": 2,
        "cut": 1,
        "stopped_rollouts": 3,
        "saved_turns": 6,
        "saved_tokens": 12,
    }


def test_a_frozen_buffer_is_counted_with_what_was_played_after_the_decision() -> None:
    decided = looked(rollouts(4, 3, 2), step=2, stop=True)  # played to its end: two rollouts went on, for 2 and 1 turns
    counts = gate_counts([PASSED, decided, SHORT], to_the_end=True)
    found = gate_result(counts)
    assert (found["groups"], found["looked"], found["cut"], found["unstopped"]) == (3, 2, 1, 3)
    assert (found["stopped_rollouts"], found["saved_turns"], found["saved_tokens"]) == (2, 3, 6)


def test_groups_that_a_refill_replaced_are_counted_and_those_of_a_buffer_are_not(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, lambda state: [], trees=0)
    refilled = Experience(trees=[CUT], rewards=[{}], credits=[Credit([0.0] * 6, [0.0] * 6)], replaced=[(PASSED, {})])
    cost = {"turns": 16.0, "tokens": 32.0, "faults": 0.0, "retries": 0.0}
    recorder.collected(0, Gathered(refilled, cost, 1.0), [])
    assert recorder.counters["gate/groups"] == 2 and recorder.counters["gate/passed"] == 2
    recorder.collected(1, Gathered(refilled, dict.fromkeys(cost, 0.0), 1.0), [])  # drawn from a buffer
    assert recorder.counters["gate/groups"] == 2
