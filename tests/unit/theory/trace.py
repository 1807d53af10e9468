"""TRACE's three propositions (arXiv:2606.11119, section 3) on finite rollout processes.

A process is a tree of histories: node 0 is the prompt, ``parent_N[i]`` stands before i, ``step_N[i]`` is the probability of i
given its parent, and an episode that has reached a leaf succeeds there with certainty or not at all (``success_N``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Process:
    """Axis _N: histories, parents before children. Siblings' steps sum to 1; ``success_N`` is read at leaves alone."""

    parent_N: NDArray[np.int64]
    step_N: Array
    success_N: Array

    def leaves(self) -> NDArray[np.bool_]:
        """Which histories end an episode, (N,)."""
        leaf_N = np.ones(len(self.parent_N), dtype=bool)
        leaf_N[self.parent_N[1:]] = False
        return leaf_N

    def reach(self) -> Array:
        """Probability that an episode passes through each history, (N,)."""
        reach_N = self.step_N.copy()
        for i in range(1, len(reach_N)):
            reach_N[i] *= reach_N[self.parent_N[i]]
        return reach_N

    def depth(self) -> NDArray[np.int64]:
        """Turns taken, (N,)."""
        depth_N = np.zeros(len(self.parent_N), dtype=np.int64)
        for i in range(1, len(depth_N)):
            depth_N[i] = depth_N[self.parent_N[i]] + 1
        return depth_N

    def value(self) -> Array:
        """V of each history: its conditional success probability (Eq. 4), (N,)."""
        value_N = np.where(self.leaves(), self.success_N, 0.0)
        for i in range(len(value_N) - 1, 0, -1):
            value_N[self.parent_N[i]] += self.step_N[i] * value_N[i]
        return value_N


def group_risk(process: Process, turn: int, continuations: int) -> float:
    """Least mean squared error of predicting the mean reward of ``continuations`` fresh ones after ``turn`` turns (Eq. 24).

    An episode that has ended by then stays where it ended. Proposition 1: never rises with ``turn``.
    """
    value_N, reach_N, depth_N = process.value(), process.reach(), process.depth()
    standing = (depth_N == turn) | (process.leaves() & (depth_N < turn))
    return float(np.sum(reach_N * value_N * (1 - value_N), where=standing)) / continuations


def quadratic_variation(process: Process) -> Array:
    """Expected sum of squared revisions of V below each history, given that history, (N,). Proposition 2: V (1 - V)."""
    value_N = process.value()
    moved_N = np.zeros(len(value_N))
    for i in range(len(value_N) - 1, 0, -1):
        above = process.parent_N[i]
        moved_N[above] += process.step_N[i] * (moved_N[i] + (value_N[i] - value_N[above]) ** 2)
    return moved_N


def root_activation(value_A: Array, rollouts_A: NDArray[np.int64]) -> Array:
    """Probability that each root's rollouts hold a success and a failure (Eq. 33)."""
    m = rollouts_A
    return np.where(m < 2, 0.0, 1 - value_A**m - (1 - value_A) ** m)


def prefix_activation(value_A: Array, reward_A: Array, continuations_A: NDArray[np.int64]) -> Array:
    """Probability that some continuation of each prefix ends otherwise than the rollout that visited it (Eq. 35)."""
    same_A = np.where(reward_A > 0.5, value_A, 1 - value_A)
    return np.asarray(1 - same_A**continuations_A, dtype=np.float64)


def gradient_energy(activation_A: Array, scale: float = 1.0) -> float:
    """E ||G||^2 of a stage whose anchors' gradients have squared length ``scale`` once active and no inner products with
    each other in expectation (Eq. 41). Proposition 3: no allocation of the same budget has more than TRACE's."""
    return scale * float(activation_A.sum())
