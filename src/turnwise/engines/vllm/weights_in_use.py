"""Records which weights are still in use, so that servers and folders keep these weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from turnwise.engines.vllm.save_weights import Snapshot


class Uses:
    """The snapshots that requests in progress and views of the engine still need. Any thread may call the methods."""

    def __init__(self) -> None:
        self._now: dict[object, Snapshot] = {}  # a key for each use, so that a use ends without a search

    @contextmanager
    def use(self, snapshot: Snapshot) -> Iterator[None]:
        """Counts ``snapshot`` as used within a ``with`` block."""
        key = object()
        self._now[key] = snapshot
        try:
            yield
        finally:
            del self._now[key]

    def all(self) -> list[Snapshot]:
        """Returns the snapshot of each use. A snapshot with several uses is in the list several times."""
        return list(self._now.values())
