"""Defines an engine that keeps no histories, to measure the cost of everything around an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Idle:
    """An :class:`turnwise.engines.engine.Engine` without ``sample``, which only numbers the nodes."""

    def __init__(self) -> None:
        self.version, self.nodes = 0, 0

    def load_weights(self, model: Any, version: int) -> None:
        self.version, self.nodes = version, 0

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        self.nodes += 1
        return self.nodes

    def fork(self, node: int) -> int:
        self.nodes += 1
        return self.nodes

    def extend(self, node: int, ids: Sequence[int]) -> None: ...

    def close(self, nodes: Sequence[int]) -> None: ...

    def report(self) -> Mapping[str, float]:
        return {}

    def shutdown(self) -> None: ...
