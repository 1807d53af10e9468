"""What a rollout needs from a language model: open a state, fork it, extend it, sample from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings. ``temperature=0`` is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    max_tokens: int = 24

    def __post_init__(self) -> None:
        if self.temperature and not 0.001 <= self.temperature <= 100:
            raise ValueError(f"temperature must be 0 (greedy), or from 0.001 to 100, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 0 or not 0 <= self.min_p <= 1:
            raise ValueError(f"top_k must be at least 0 and min_p in [0, 1], got {self.top_k} and {self.min_p}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")


@dataclass(slots=True)
class Sample:
    """What one node's policy wrote: ids with the end-of-turn token (unless truncated) and their log-probs."""

    ids: list[int]
    logprobs: list[float]  # under the distribution that was sampled from, natural log
    truncated: bool = False
    whole: bool = True  # False: a part of an action, which is sampled in slices


Told = Callable[[int, Sample], None]
"""Place in the batch and its sample, which is whole."""


class Engine(Protocol):
    """Nodes are opaque integers. Keys and values of a node stay until it is closed or the weights change.

    Two attributes are optional:

    - ``schedule``: ``rounds`` or ``free`` (``engines.schedule``); ``rounds`` where it is missing. With ``free``, ``sample`` also
      takes ``steps`` and ``written``, as that of :class:`turnwise.engines.tree.TreeEngine` does, or the engine is ``served``.
    - ``served = True``: it has a coroutine ``request(node, sampling, seed)``, which samples one action for a node.
    """

    version: int  # of the weights that are loaded

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        """A node that holds this history. Histories that share a prefix share its keys and values.

        ``near`` names what it has much in common with (its task): an engine of several parts keeps those of one name in one.
        """
        ...

    def fork(self, node: int) -> int: ...

    def extend(self, node: int, ids: Sequence[int]) -> None:
        """Append tokens the policy did not write (an observation)."""
        ...

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        """One action per node, appended to it. A node's seed alone decides its draw, whatever the batch.

        ``on_sample`` is told each sample once, as soon as it is whole: others of the batch may still be written.
        """
        ...

    def close(self, nodes: Sequence[int]) -> None:
        """Forget nodes. Where a sample of theirs is under way, it is cancelled if the engine can."""
        ...

    def load_weights(self, model: Any, version: int) -> None:
        """Sample from these weights from now on; every kept key and value is dropped."""
        ...

    def report(self) -> Mapping[str, float]:
        """What it has done since it was built, for metrics; sums."""
        ...

    def shutdown(self) -> None:
        """Give back what it holds outside this process. It may be used again: weights are loaded first then, too."""
        ...
