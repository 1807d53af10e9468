from __future__ import annotations

from turnwise.algo.gates.rules import Never
from turnwise.types import RolloutTree, State, Task, Turn


def test_identical_rollouts_are_not_stopped() -> None:
    state = State(id="0", task=Task("toy", "train/0", "train"), ids=(1,))
    assert Never()(RolloutTree(state, [Turn(-1, [1], [-1.0], text="look")] * 8), 1) is False
