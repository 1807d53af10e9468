"""Distributes a budget of units (rollouts) over items (prompts or prefixes).

The gain of each further unit of an item is at most the gain of the unit before. Therefore the greedy choice, which
always takes the unit with the greatest gain, is optimal. Its cost is nearly linear in the number of items and in the
budget.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
    """Returns the units of each item if ``budget`` units are spread evenly. The first items get the remainder."""
    counts = np.full(items, budget // items, np.int64)
    counts[: budget % items] += 1
    return counts


def probabilities(values: object, name: str) -> Array:
    """Returns ``values`` as an array. Raises a ValueError if they are not a flat list of numbers in [0, 1]."""
    array = np.asarray(values, dtype=np.float64)
    wrong = np.flatnonzero(~((array >= 0) & (array <= 1)))
    if array.ndim != 1 or len(wrong):
        what = (
            f"the value at index {wrong[0]} is {array[wrong[0]]}" if array.ndim == 1 else f"the shape is {array.shape}"
        )
        raise ValueError(f"{name} must be a list of probabilities in [0, 1]: {what}")
    return array
