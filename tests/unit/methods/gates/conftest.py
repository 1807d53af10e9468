"""Groups of rollouts written as strings: one letter an action."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from turnwise.types import RolloutTree, State, Task, Turn


def grown(rollouts: Sequence[str], step: int, name: str = "s", version: int = 0) -> RolloutTree:
    """The tree of these rollouts after ``step`` turns, as ``Player`` grows it: round by round; longer ones go on."""
    tree = RolloutTree(State(id=name, task=Task("toy", "t", "train"), ids=(1,)), version=version)
    last = dict.fromkeys(range(len(rollouts)), -1)
    for depth in range(step):
        for i, letters in enumerate(rollouts):
            if depth >= len(letters):
                continue
            over = depth + 1 == len(letters)
            turn = Turn(last[i], [1], [-1.0], letters[depth], [] if over else [7], f"saw {letters[depth]}", done=over)
            tree.turns.append(turn)
            last[i] = len(tree.turns) - 1
    return tree


@pytest.fixture
def grow() -> Callable[..., RolloutTree]:
    return grown
