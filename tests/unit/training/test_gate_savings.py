"""What a gate stopped and about what that saved, counted by hand."""

from __future__ import annotations

from pathlib import Path

from turnwise.rollouts.collect import Experience
from turnwise.training.metrics import GATE, gate_counts, gate_result
from turnwise.training.recorder import Gathered, Recorder
from turnwise.types import Credit, GateDecision, RolloutTree, State, Task, Turn


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
