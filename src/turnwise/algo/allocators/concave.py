"""Spends a budget of units on items with falling gains. Greedy is exact, and near-linear in items and budget."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


class Gain(Protocol):
    def __call__(self, items: Counts, start: int, stop: int) -> Array:
        """Gains of units ``start + 1 .. stop`` of these items, (items, units): at least 0 and never rising along a row."""
        ...


def greedy(gain: Gain, items: int, budget: int, width: int = 1) -> Counts:
    """Returns the units of each item that maximise the sum of gains, (items,). Only units with a gain above 0 are taken.

    The best ``budget`` units are those above a price. Levels are computed in growing blocks, only of those items whose last unit
    so far was above the price, so that hardly more units are computed than taken. Units at the price go to
    items in order, each filled before the next.

    Args:
        gain: of a block of units.
        items: how many there are.
        budget: units; fewer are taken where the gains run out.
        width: levels of the first block.
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
    """Spreads ``budget`` units evenly; the first items take the rest."""
    counts = np.full(items, budget // items, np.int64)
    counts[: budget % items] += 1
    return counts


def probabilities(values: object, name: str) -> Array:
    """Returns ``values`` as an array.

    Raises:
        ValueError: one of them lies outside [0, 1] or is not a number.
    """
    array = np.asarray(values, dtype=np.float64)
    wrong = np.flatnonzero(~((array >= 0) & (array <= 1)))
    if array.ndim != 1 or len(wrong):
        what = f"place {wrong[0]} holds {array[wrong[0]]}" if array.ndim == 1 else f"their shape is {array.shape}"
        raise ValueError(f"{name} must be a list of probabilities in [0, 1]: {what}")
    return array
