"""Allocators, which decide how many rollouts start where: the interface, the same number everywhere, TreePO and PCL.

TreePO has the form of TRACE's experiments (arXiv:2606.11119, App. E.5). PCL (arXiv:2510.01135) samples the prompts whose
predicted success is nearest one half.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from turnwise.types import RolloutTree, State, Value


class Allocator(Protocol):
    def __call__(self, states: Sequence[State]) -> list[int]:
        """Returns how many rollouts to start at each state, before any rollout is sampled; 0 skips the state."""
        ...

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        """Returns how many further rollouts to start in each tree, as a mapping from turn index to count. Index -1 is
        the root. The method is called when the rollouts from the roots have ended.

        Each tree is passed in only one call. If a call passes several trees, the result for a tree must not depend on
        the other trees.
        """
        ...


def anchors(tree: RolloutTree) -> list[list[int]]:
    """Returns the turns at which each rollout can branch: all turns but the last (TRACE Eq. 7). Rollouts whose
    environment failed are left out.
    """
    return [tree.path(leaf)[:-1] for leaf in tree.valid_leaves()]


@dataclass(frozen=True, slots=True)
class Uniform:
    """Starts ``group_size`` rollouts (GRPO's G) at each state, all from the root.

    A group of one rollout has no baseline, so advantage rules that compare rollouts learn nothing from it.
    """

    group_size: Annotated[int, Interval(ge=1, le=2**16)] = 8

    def __call__(self, states: Sequence[State]) -> list[int]:
        return [self.group_size] * len(states)

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return [{} for _ in trees]


@dataclass(frozen=True, slots=True)
class TreePO:
    """Starts ``roots`` rollouts at each state. Then it draws ``branches`` random turns in each of these rollouts and
    starts one continuation after each drawn turn.

    The drawn turns of a rollout are all different if the rollout has enough turns. A rollout whose environment failed
    gets no continuations. If a rollout has no turn to branch at, its continuations start in the other rollouts of the
    state. If no rollout of the state has a turn to branch at, the continuations start at the root.
    """

    roots: Annotated[int, Interval(ge=1, le=2**16)] = 4
    branches: Annotated[int, Interval(ge=0, le=2**16)] = 2
    seed: int = 0

    def __call__(self, states: Sequence[State]) -> list[int]:
        return [self.roots] * len(states)

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return [self._expand(tree) for tree in trees]

    def _expand(self, tree: RolloutTree) -> Mapping[int, int]:
        rollouts = anchors(tree)
        budget = len(rollouts) * self.branches
        if not any(rollouts):
            return {-1: budget} if budget else {}
        rng = random.Random(f"{self.seed}/{tree.state.id}/{tree.version}")
        turns = [turn for path in rollouts if path for turn in _draw(rng, path, self.branches)]
        everywhere = [turn for path in rollouts for turn in path]
        turns += [rng.choice(everywhere) for _ in range(budget - len(turns))]
        return Counter(turns)


def _draw(rng: random.Random, path: Sequence[int], count: int) -> list[int]:
    drawn: list[int] = []
    while len(drawn) < count:
        drawn += rng.sample(path, min(len(path), count - len(drawn)))
    return drawn


Array = NDArray[np.float64]

Counts = NDArray[np.int64]


class Gain(Protocol):
    def __call__(self, items: Counts, start: int, stop: int) -> Array:
        """Returns the gains of units number ``start + 1`` to ``stop`` of each item, shape (items, stop - start). Gains
        are at least 0, and a unit's gain is never greater than that of an earlier unit of the item.
        """
        ...


def greedy(gain: Gain, items: int, budget: int, width: int = 1) -> Counts:
    """Returns how many units to give to each item so that the sum of gains is largest, shape (items,).

    Only units with a gain above 0 are taken. The best ``budget`` units are those whose gain is above a threshold
    (``price``). Gains are computed in growing blocks, and only for items whose last computed gain was above the
    threshold. Units whose gain equals the threshold go to the items in order, and each item gets all of its own before
    the next item gets any.

    Args:
        gain: returns the gains of a block of units.
        budget: the number of units to spend; fewer are spent if no gain above 0 is left.
        width: the number of units per item in the first block.
    """
    active = np.arange(items)
    blocks: list[tuple[Counts, Array]] = []
    pool = np.empty(0)
    price, level = 0.0, 0
    while len(active) and level < budget:
        stop = min(budget, level + max(1, level // 2) if level else width)
        block = gain(active, level, stop)
        blocks.append((active, block))
        pool = np.concatenate([pool[pool >= price], block[(block >= price) & (block > 0)]])
        if len(pool) > budget:
            price = float(np.partition(pool, len(pool) - budget)[len(pool) - budget])
        active, level = active[block[:, -1] > price], stop
    above, at = np.zeros(items, np.int64), np.zeros(items, np.int64)
    for members, block in blocks:
        above[members] += (block > price).sum(1)
        at[members] += (block == price).sum(1)
    if price == 0:
        return above
    before = np.cumsum(at) - at
    return above + np.clip(budget - above.sum() - before, 0, at)


def even(items: int, budget: int) -> Counts:
    """The first items get the remainder."""
    counts = np.full(items, budget // items, np.int64)
    counts[: budget % items] += 1
    return counts


def probabilities(values: object, name: str) -> Array:
    """Raises a ValueError if ``values`` are not a flat list of numbers in [0, 1]."""
    array = np.asarray(values, dtype=np.float64)
    wrong = np.flatnonzero(~((array >= 0) & (array <= 1)))
    if array.ndim != 1 or len(wrong):
        what = (
            f"the value at index {wrong[0]} is {array[wrong[0]]}" if array.ndim == 1 else f"the shape is {array.shape}"
        )
        raise ValueError(f"{name} must be a list of probabilities in [0, 1]: {what}")
    return array


@dataclass(frozen=True, slots=True)
class Pcl:
    """Gives ``group_size`` rollouts to each of the ``prompts`` states whose predicted success is nearest to 1/2."""

    value: Value
    prompts: Annotated[int, Interval(ge=1, le=2**16)] = 32
    group_size: Annotated[int, Interval(ge=1, le=2**16)] = 16

    def __call__(self, states: Sequence[State]) -> list[int]:
        values = [value[0] for value in self.value([RolloutTree(state) for state in states])]
        nearest = sorted(range(len(states)), key=lambda i: (abs(values[i] - 0.5), i))[: self.prompts]
        chosen = set(nearest)
        return [self.group_size if i in chosen else 0 for i in range(len(states))]

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return [{} for _ in trees]
