"""Draws the work of a collection: groups of rollouts, the tokens of each turn, and the seconds of each answer."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

Turn = tuple[int, float]
"""A turn: (tokens of the reply, seconds until the environment has answered)."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A log-normal distribution that is limited to at most ``most``.

    Attributes:
        mean: the mean before the limit is applied.
        sigma: standard deviation of the logarithm. The 99th percentile is exp(2.33 sigma) times the median: 10 times at
            1.0.
        most: larger values are replaced by this one.
    """

    mean: float
    sigma: float
    most: float = float("inf")

    def draw(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Returns ``count`` random values."""
        if self.mean <= 0:
            return np.zeros(count)
        values = generator.lognormal(log(self.mean) - self.sigma**2 / 2, self.sigma, count)
        return np.minimum(values, self.most)


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one state.

    Attributes:
        rollouts: the turns of each rollout.
        stop: the turn after which a gate stops the group; None: no gate stops it.
    """

    rollouts: tuple[tuple[Turn, ...], ...]
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """The distribution from which a collection is drawn. Rollouts are independent of each other.

    Attributes:
        groups: number of states of a collection.
        size: rollouts of a group.
        turns: distribution of the turns of a rollout.
        tokens: distribution of the tokens of a reply.
        latency: distribution of the seconds until the environment answers.
        opening, observation: tokens before the first turn, and tokens of one answer of the environment.
        max_length: most tokens of a history; a rollout ends if another reply of ``tokens.most`` tokens might not fit.
        gate_share: share of the groups that a gate stops.
        gate_step: the turn after which the gate stops them.
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
        """Returns the groups of collection ``number``. They depend only on the seed and on the number."""
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
