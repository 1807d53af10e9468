"""Defines the interface of an engine. Rollouts use it to open, fork and extend histories and to sample actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from annotated_types import Ge, Interval


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings for sampling actions. ``temperature=0`` means greedy decoding."""

    temperature: float = 1.0
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Ge(0)] = 0  # 0: no limit
    min_p: Annotated[float, Interval(ge=0, le=1)] = 0.0
    max_tokens: Annotated[int, Interval(ge=1, le=2**20)] = 24

    def __post_init__(self) -> None:
        if self.temperature and not 0.001 <= self.temperature <= 100:
            raise ValueError(f"temperature must be 0 (greedy), or from 0.001 to 100, got {self.temperature}")


@dataclass(slots=True)
class Sample:
    """A sampled action: its token ids and their log-probs.

    The last token is the end-of-turn token, unless the action is truncated.
    """

    ids: list[int]
    logprobs: list[float]  # natural logarithms, for the distribution from which the tokens were sampled
    truncated: bool = False
    whole: bool = True  # False: this is only a part of an action (an engine may sample an action in several calls)
    version: int | None = field(default=None, compare=False)  # version of the weights; None: the engine's


Told = Callable[[int, Sample], None]
"""A callback for complete samples. Its arguments are the sample's index in the batch and the sample."""


class Engine(Protocol):
    """Samples actions from a language model, as continuations of histories.

    A node is an integer that stands for a history of tokens. The engine keeps the keys and values of a node until the
    node is closed or the weights change. If a memory limit forces the engine to drop them earlier, it computes them
    again when they are needed. Two attributes are optional:

    - ``schedule`` is ``rounds`` (the default) or ``free``; ``engines.sampling_schedule`` explains both. With ``free``,
      the engine must set ``served``, or its ``sample`` must accept ``steps`` and ``written`` as
      :class:`turnwise.engines.tree_engine.TreeEngine` does.
    - ``served = True`` means that the engine has a coroutine ``request(node, sampling, seed)``, which samples one
      action for a node.
    """

    version: int  # version of the loaded weights

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        """Returns a new node for the history ``ids``. Histories with a common prefix share its keys and values.

        ``near`` names the history's task. An engine with several processes keeps all histories of a task in one
        process, because they share long prefixes.
        """
        ...

    def fork(self, node: int) -> int: ...

    def extend(self, node: int, ids: Sequence[int]) -> None:
        """Appends tokens that the policy did not write, such as an observation, to the history of a node."""
        ...

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        """Samples one action per node and appends it to the node.

        The sample of a node depends only on the node's history and seed, not on the other nodes of the batch.
        ``on_sample`` is called once for each sample as soon as it is complete, while other actions of the batch may
        still be sampled.
        """
        ...

    def close(self, nodes: Sequence[int]) -> None:
        """Closes nodes, and cancels actions that are being sampled for them if the engine supports this."""
        ...

    def load_weights(self, model: Any, version: int) -> None:
        """Sets the weights that are sampled from and drops all stored keys and values."""
        ...

    def report(self) -> Mapping[str, float]: ...

    def shutdown(self) -> None:
        """Releases resources outside this process, such as servers. The next :meth:`load_weights` opens them again."""
        ...


def repeat_call(engine: Engine, inner: dict[int, int], what: str, *told: Any) -> None:
    """Makes a recorded call on nodes with ``engine``. ``inner`` maps the recorded node numbers to the engine's nodes.

    ``what`` and ``told`` are ``open`` (node, ids, near), ``fork`` (node, copy), ``extend`` (node, ids) or ``close``
    (nodes).
    """
    match what:
        case "open":
            inner[told[0]] = engine.open(*told[1:])
        case "fork":
            inner[told[1]] = engine.fork(inner[told[0]])
        case "extend":
            engine.extend(inner[told[0]], told[1])
        case "close":
            engine.close([inner.pop(node) for node in told[0]])
