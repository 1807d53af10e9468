"""The interface of an engine: a rollout opens a history, forks it, extends it and samples from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings; ``temperature=0`` is greedy decoding."""

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
    """A sampled action: token ids with the end-of-turn token (unless truncated), and log-probs."""

    ids: list[int]
    logprobs: list[float]  # under the distribution that was sampled from, natural log
    truncated: bool = False
    whole: bool = True  # False: only a part of an action, when actions are sampled in slices


Told = Callable[[int, Sample], None]
"""A callback for complete samples: it gets the sample's place in the batch and the sample."""


class Engine(Protocol):
    """A language model to sample from. Nodes are opaque integers; each stands for a history.

    Keys and values of a node are kept until the node is closed or the weights change. Two attributes are optional:

    - ``schedule``: ``rounds`` or ``free`` (``engines.schedule``); ``rounds`` by default. With ``free``, either
      ``sample`` also takes ``steps`` and ``written``, as in :class:`turnwise.engines.tree.TreeEngine`, or the engine is
      ``served``.
    - ``served = True``: the engine has a coroutine ``request(node, sampling, seed)``, which samples one action for a
      node.
    """

    version: int  # version of the weights that are loaded

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        """Returns a node that holds this history. Histories that share a prefix share its keys and values.

        Histories with the same ``near`` (their task) have much in common. An engine with several parts keeps them in
        one part.
        """
        ...

    def fork(self, node: int) -> int: ...

    def extend(self, node: int, ids: Sequence[int]) -> None:
        """Appends tokens that the policy did not write (an observation)."""
        ...

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        """Samples one action per node and appends it to the node.

        A node's sample depends only on its seed, not on what else is in the batch. ``on_sample`` is called once
        for each sample as soon as it is complete, while others of the batch may still be sampled.
        """
        ...

    def close(self, nodes: Sequence[int]) -> None:
        """Closes nodes. A sample that is still running for one of them is cancelled if the engine can do so."""
        ...

    def load_weights(self, model: Any, version: int) -> None:
        """Sets the weights to sample from and drops all kept keys and values."""
        ...

    def report(self) -> Mapping[str, float]:
        """Returns sums of what the engine has done since it was built, for metrics."""
        ...

    def shutdown(self) -> None:
        """Releases what the engine holds outside this process. To use it again, load weights first."""
        ...
