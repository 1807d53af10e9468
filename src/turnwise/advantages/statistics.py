"""What credit rules share: the rewards that count, their spread, and what becomes of groups without any."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

from turnwise.types import Rewards, RolloutTree

ZeroVariance = Literal["keep", "drop", "refill"]
"""What becomes of a group whose rewards are equal: ``keep`` it with advantage 0 (it counts in every mean and feels the KL),
``drop`` it (weight 0), or ``refill``: drop it, and ask the collector for other states where a whole tree is dropped."""


def valid_totals(tree: RolloutTree, rewards: Rewards) -> dict[int, float]:
    """The total reward of each leaf whose world did not fail, by turn index.

    Raises:
        ValueError: no reward named ``total``, a length other than the number of leaves, or a total that is not finite.
    """
    leaves = tree.leaves()
    if "total" not in rewards:
        raise ValueError(f"state {tree.state.id!r}: rewards {sorted(rewards)} hold no 'total', which advantages read")
    if len(rewards["total"]) != len(leaves):
        raise ValueError(f"state {tree.state.id!r}: {len(rewards['total'])} rewards for {len(leaves)} leaves")
    total = {leaf: float(r) for leaf, r in zip(leaves, rewards["total"], strict=True) if leaf not in tree.invalid}
    for leaf, value in total.items():
        if not math.isfinite(value):
            raise ValueError(
                f"state {tree.state.id!r}: the total reward of leaf {leaf} is {value}. A reward that could not be computed "
                "belongs to an invalid leaf (RolloutTree.invalid), not into the statistics"
            )
    return total


def population_std(values: Collection[float]) -> float:
    """Square root of the mean squared distance from the mean."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def normalised(values: Collection[float], eps: float, tolerance: float) -> list[float] | None:
    """(value - mean) / (std + eps); None for fewer than two values or a std of at most ``tolerance``."""
    if len(values) < 2:
        return None
    std = population_std(values)
    if std <= tolerance:
        return None
    mean = math.fsum(values) / len(values)
    return [(value - mean) / (std + eps) for value in values]


def check_settings(eps: float, tolerance: float, zero_variance: str) -> None:
    """Range checks of the parameters that every group-relative rule has.

    Raises:
        ValueError: naming the parameter.
    """
    if not (eps >= 0 and tolerance >= 0):
        raise ValueError(f"eps and tolerance must be at least 0, got {eps} and {tolerance}")
    if zero_variance not in ("keep", "drop", "refill"):
        raise ValueError(f"zero_variance must be keep, drop or refill, got {zero_variance!r}")
