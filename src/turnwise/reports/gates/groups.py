"""Defines the recorded groups of rollouts on which gates are evaluated. Each rollout of a group ran to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Label = Literal["all_fail", "mixed", "all_succeed"]
LABELS: tuple[Label, ...] = ("all_succeed", "mixed", "all_fail")
# name of a baseline signal, computed only from the rewards of finished rollouts; tables compare it with the signals
# that gates use
KNOWN = "rewards_known"
TOLERANCE = 1e-6  # rewards with at most this std count as equal, as in turnwise.algo.advantages.group


@dataclass(frozen=True, slots=True)
class Group:
    """One group of rollouts from the same state: how it ended, the value of each signal after K turns, and how many
    turns its rollouts took after these K turns.
    """

    id: str
    label: Label
    variance: float  # population variance of the group's rewards
    size: int  # number of rollouts
    turns: float  # number of turns of all rollouts together
    signals: Mapping[int, Mapping[str, float]]  # K -> signal -> value
    tail: Mapping[int, float]  # K -> number of turns of all rollouts after step K
    kind: str | None = None  # kind of the task
    iteration: int = 0  # training iteration in which the group was sampled
    # K -> signal -> value that a running gate computed at step K
    looks: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A set of recorded groups with their common settings.

    ``measured`` says whether ``turns`` and ``tail`` of the groups are counts of recorded turns. If not, they are upper
    bounds: ``turns`` assumes that every rollout lasts until the horizon, and ``tail`` assumes this of every rollout
    that has not ended at step K. ``left_out`` maps a reason to the number of groups that were left out for it.
    """

    groups: tuple[Group, ...]
    horizon: int  # T_max in turns
    steps: tuple[int, ...]  # values of K at which signals are known, ascending
    measured: bool
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def uniform(self) -> np.ndarray:
        """(N,) bool: whether all rewards of a group are equal (zero variance). A gate should detect such groups."""
        return np.sqrt(self.variances) <= TOLERANCE

    @property
    def variances(self) -> np.ndarray:
        return np.array([group.variance for group in self.groups])

    @property
    def turns(self) -> np.ndarray:
        return np.array([group.turns for group in self.groups], dtype=float)

    @property
    def energies(self) -> np.ndarray:
        """(N,) squared L2 norm of each group's GRPO advantages (r - mean) / std. It equals the group size G, or 0 if
        the rewards are equal.
        """
        return np.array([group.size for group in self.groups], dtype=float) * ~self.uniform

    def values(self, step: int, signal: str) -> np.ndarray:
        return np.array([group.signals[step][signal] for group in self.groups])

    def tails(self, step: int) -> np.ndarray:
        return np.array([group.tail[step] for group in self.groups], dtype=float)

    def only(self, keep: Sequence[int] | np.ndarray) -> Buffer:
        """Returns a buffer with only the groups whose indices are in ``keep``."""
        return Buffer(tuple(self.groups[i] for i in keep), self.horizon, self.steps, self.measured, dict(self.left_out))


def label_of(rewards: Sequence[float]) -> Label:
    """Returns ``mixed`` if the rewards differ, ``all_succeed`` if they are equal and above 0, and ``all_fail`` if they
    are equal and not above 0.
    """
    if float(np.std(rewards)) > TOLERANCE:
        return "mixed"
    return "all_succeed" if float(np.mean(rewards)) > TOLERANCE else "all_fail"
