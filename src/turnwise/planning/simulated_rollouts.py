"""Draws random rollouts for a simulation: the number of tokens of each reply, and the seconds until the environment
answers the reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

Turn = tuple[int, float]
"""A simulated turn: (number of tokens of the reply, seconds that the environment takes to answer)."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A log-normal distribution of which values above ``most`` are replaced by ``most``.

    Attributes:
        mean: mean before large values are replaced. A mean of 0 or less gives only zeros.
        sigma: standard deviation of the logarithm. The 99th percentile is exp(2.33 sigma) times the median, for example
            10 times the median for sigma 1.0.
    """

    mean: float
    sigma: float
    most: float = float("inf")

    def draw(self, count: int, generator: np.random.Generator) -> np.ndarray:
        if self.mean <= 0:
            return np.zeros(count)
        values = generator.lognormal(log(self.mean) - self.sigma**2 / 2, self.sigma, count)
        return np.minimum(values, self.most)


@dataclass(frozen=True, slots=True)
class Group:
    """The simulated rollouts of one state.

    Attributes:
        rollouts: the turns of each rollout.
        stop: the turn after which a gate stops all rollouts of the group. None: no gate stops the group.
    """

    rollouts: tuple[tuple[Turn, ...], ...]
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """The distribution of the rollouts of a collection, which is the batch of rollouts for one update. Rollouts are
    independent of each other.

    Attributes:
        groups: number of groups in a collection, one group for each state.
        size: number of rollouts in a group.
        turns: distribution of the number of turns of a rollout.
        tokens: distribution of the number of tokens of a reply.
        latency: distribution of the seconds until the environment answers a reply.
        opening: number of tokens before the first turn.
        observation: number of tokens of one answer of the environment.
        max_length: largest number of tokens of a rollout. A rollout ends early if a further reply of ``tokens.most``
            tokens could exceed this number.
        gate_share: fraction of the groups that a gate stops.
        gate_step: turn after which the gate stops a group.
    """

    groups: int
    size: int
    turns: Tail
    tokens: Tail
    latency: Tail
    opening: float = 0.0
    observation: float = 0.0
    max_length: float = float("inf")
    gate_share: float = 0.0
    gate_step: int = 10

    def collection(self, seed: int, number: int) -> list[Group]:
        """Returns the groups of collection ``number``. Equal values of ``seed`` and ``number`` give equal groups."""
        generator = np.random.default_rng((seed, number))
        groups = []
        for _ in range(self.groups):
            counts = np.maximum(1, np.rint(self.turns.draw(self.size, generator))).astype(int)
            rollouts = tuple(self._rollout(int(count), generator) for count in counts)
            groups.append(Group(rollouts, self.gate_step if generator.random() < self.gate_share else None))
        return groups

    def _rollout(self, count: int, generator: np.random.Generator) -> tuple[Turn, ...]:
        tokens = np.maximum(1, np.rint(self.tokens.draw(count, generator))).astype(int).tolist()
        latency = self.latency.draw(count, generator).tolist()
        length, turns = self.opening, 0
        for reply in tokens:
            if turns and length + self.tokens.most > self.max_length:
                break
            length += reply + self.observation
            turns += 1
        return tuple(zip(tokens[:turns], latency[:turns], strict=True))
