from __future__ import annotations

from turnwise.algo.allocators.allocator import Uniform
from turnwise.types import RolloutTree, State, Task, Turn


def test_same_count_everywhere_and_no_expansion() -> None:
    states = [State(id=str(i), task=Task("toy", "train/0", "train"), ids=(1,)) for i in range(3)]
    allocator = Uniform(group_size=4)
    assert allocator(states) == [4, 4, 4]
    assert allocator([]) == []
    assert allocator.expand([RolloutTree(states[0], [Turn(-1, [1], [-1.0])])] * 2) == [{}, {}]
