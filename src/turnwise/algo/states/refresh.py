"""Decides when to profile the candidate states again: when fewer groups have mixed outcomes than after the last
profile.

To profile a state means to sample actions there and to record their rewards. A group has mixed outcomes if the rewards
of its rollouts differ. PivotRL (arXiv:2603.21383) profiles only once, under the frozen base policy. Its pivots are the
turns at which outcomes of that policy differ (Eq. 5). A policy that has learned these turns always succeeds at them.
All rewards of a group are then equal, and all advantages are 0 (Proposition 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refresh:
    """Decides when to profile the candidate states again. A mixed group is a group whose rollouts have different
    rewards.

    Attributes:
        share: a new profile is due when the fraction of mixed groups is below ``share`` times its value right after the
            previous profile. The current value is the mean over the newest ``window`` iterations. The earlier value is
            the mean over the first ``window`` iterations after that profile.
        window: number of iterations of each mean.
        gap: least number of iterations between two profiles. Twice ``window`` is used if that is more.
        most: greatest number of profiles of a run. The first profile, which is that of the base policy, counts too.
    """

    share: float
    window: int = 3
    gap: int = 6
    most: int = 4

    def decay(self, history: Sequence[float]) -> float | None:
        """Returns the mean of the last ``window`` values of ``history`` divided by the mean of the first ``window``, or
        None if these values overlap or the first mean is 0. ``history`` holds the fraction of mixed groups at each
        iteration since the last profile.
        """
        if len(history) < 2 * self.window:
            return None
        first, last = sum(history[: self.window]), sum(history[-self.window :])
        return last / first if first > 0 else None

    def due(self, history: Sequence[float], profiles: int) -> bool:
        """Returns whether a new profile is due. ``history`` holds the fraction of mixed groups at each iteration since
        the last profile, ``profiles`` is the number of profiles so far.
        """
        left = self.decay(history)
        return profiles < self.most and len(history) >= self.gap and left is not None and left < self.share
