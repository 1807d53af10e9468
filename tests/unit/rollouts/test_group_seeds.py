"""The seeds with which actions are drawn."""

from __future__ import annotations

from itertools import product

from turnwise.rollouts.player import Branch
from turnwise.types import RolloutTree, State, Task


def seed(key: object, state: str, anchor: int, branch: int, depth: int, attempt: int, number: int = 0) -> int:
    tree = RolloutTree(State(state, Task("toy", "0", "train"), (1, 2)))
    return Branch(tree, number, anchor, branch, number, (), 2, attempt=attempt, depth=depth).seed(key)


def test_every_action_has_a_seed_of_its_own_whatever_shares_its_batch() -> None:
    """Two groups, two rollouts or two iterations with one seed would be one sample that counts twice."""
    keys = [(0, 0), (0, 1), (1, 0)]  # two batches of an iteration, and another iteration
    names = list(product(keys, ("a", "b"), (-1, 0, 1), (0, 1, 2), (0, 1, 2), (0, 1)))
    seeds = [seed(*name) for name in names]
    assert len(set(seeds)) == len(names)
    assert [seed(*name, number=7) for name in names] == seeds
