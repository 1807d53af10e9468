"""Helper functions for the advantage rules that normalise rewards within groups of a tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from turnwise.algo.advantages.advantage import mean, std

ZeroVariance = Literal["keep", "drop", "refill"]
"""The ways to handle a group whose rewards are equal. ``keep`` gives it advantage 0 (it counts in every mean and
receives the KL term). ``drop`` gives it weight 0. ``refill`` drops it and, if the whole tree is dropped, samples
rollouts from another state instead (DAPO, arXiv:2503.14476).
"""


def normalised(group: Mapping[int, float], eps: float, tolerance: float) -> dict[int, float] | None:
    """Returns (value - mean) / (std + eps) of each value of a group, or None for fewer than two values or a std of at
    most ``tolerance``.
    """
    spread = std(group.values()) if len(group) > 1 else 0.0
    if spread <= tolerance:
        return None
    centre = mean(group.values())
    return {key: (value - centre) / (spread + eps) for key, value in group.items()}


def check_settings(eps: float, tolerance: float, zero_variance: str) -> None:
    """Raises a ValueError that names the wrong setting if one of the settings is out of range."""
    if not (eps >= 0 and tolerance >= 0):
        raise ValueError(f"eps and tolerance must be at least 0, got {eps} and {tolerance}")
    if zero_variance not in ("keep", "drop", "refill"):
        raise ValueError(f"zero_variance must be keep, drop or refill, got {zero_variance!r}")
