"""Defines groups of rollouts that ran to their end, on which gates are evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Label = Literal["all_fail", "mixed", "all_succeed"]
LABELS: tuple[Label, ...] = ("all_succeed", "mixed", "all_fail")
# name of the signal that only uses the rewards of finished rollouts, shown beside the gate's own
KNOWN = "rewards_known"
TOLERANCE = 1e-6  # std at or below which rewards count as equal, as in turnwise.algo.advantages.group


@dataclass(frozen=True, slots=True)
class Group:
    """One group: its final rewards, the value of each signal after K turns, and the number of turns after step K."""

    id: str
    label: Label
    variance: float  # population variance of the group's rewards
    size: int  # number of rollouts
    turns: float  # turns of all rollouts together
    signals: Mapping[int, Mapping[str, float]]  # K -> signal -> value
    tail: Mapping[int, float]  # K -> turns of all rollouts after step K
    kind: str | None = None  # kind of task
    iteration: int = 0  # training iteration in which it was sampled
    # K -> values that a running gate computed there
    looks: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Groups with their common settings.

    ``measured`` says whether the turns and tails are counted. Otherwise they are upper bounds, which assume that an
    unfinished rollout lasts until the horizon. ``left_out`` counts unusable groups by reason.
    """

    groups: tuple[Group, ...]
    horizon: int  # T_max in turns
    steps: tuple[int, ...]  # values of K at which signals are known, ascending
    measured: bool
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def uniform(self) -> np.ndarray:
        """(N,) whether all rewards of each group are equal (zero variance). This is the class that a gate should
        detect.
        """
        return np.sqrt(self.variances) <= TOLERANCE

    @property
    def variances(self) -> np.ndarray:
        return np.array([group.variance for group in self.groups])

    @property
    def turns(self) -> np.ndarray:
        return np.array([group.turns for group in self.groups], dtype=float)

    @property
    def energies(self) -> np.ndarray:
        """(N,) squared L2 norm of each group's GRPO advantages (r - mean) / std. It is G, or 0 if the rewards are
        equal.
        """
        return np.array([group.size for group in self.groups], dtype=float) * ~self.uniform

    def values(self, step: int, signal: str) -> np.ndarray:
        return np.array([group.signals[step][signal] for group in self.groups])

    def tails(self, step: int) -> np.ndarray:
        return np.array([group.tail[step] for group in self.groups], dtype=float)

    def only(self, keep: Sequence[int] | np.ndarray) -> Buffer:
        """Returns a buffer of the groups with these indices."""
        return Buffer(tuple(self.groups[i] for i in keep), self.horizon, self.steps, self.measured, dict(self.left_out))


def label_of(rewards: Sequence[float]) -> Label:
    """Returns ``mixed`` if the rewards differ, else ``all_succeed`` if they are above 0, else ``all_fail``."""
    if float(np.std(rewards)) > TOLERANCE:
        return "mixed"
    return "all_succeed" if float(np.mean(rewards)) > TOLERANCE else "all_fail"
