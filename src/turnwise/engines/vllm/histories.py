"""Keeps the open histories of an engine: the token ids of each history, and the server that gets its requests."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(slots=True)
class Group:
    """The open histories that were opened with the same tokens: their number, and the number of their server."""

    server: int
    size: int = 0


@dataclass(slots=True)
class History:
    """The ids of all tokens of one history so far.

    ``digest`` is the CRC-32 of the tokens with which the history was opened.
    """

    ids: list[int]
    digest: int
    group: Group

    @property
    def server(self) -> int:
        """Returns the number of the server that gets the history's requests."""
        return self.group.server


class Histories:
    """Open histories by node number. A node number is never used twice.

    Histories that were opened with the same tokens share one of the ``servers`` servers, and so its prefix cache. The
    first of them goes to the server with the fewest open histories. Any thread may call the methods.
    """

    def __init__(self, servers: int = 1) -> None:
        self._open: dict[int, History] = {}
        self._numbers = count(1)
        self._loads = [0] * servers  # number of open histories of each server
        self._groups: dict[int, Group] = {}  # by digest
        self._lock = threading.Lock()

    def open(self, ids: Sequence[int]) -> int:
        """Opens a new history and returns its node number.

        Raises:
            ValueError: ``ids`` is empty.
        """
        ids = list(ids)
        if not ids:
            raise ValueError("a history needs at least one token")
        return self._add(ids, zlib.crc32(b"".join(token.to_bytes(4, "little") for token in ids)))

    def fork(self, node: int) -> int:
        """Copies a history and returns the node number of the copy."""
        source = self[node]
        return self._add(list(source.ids), source.digest)

    def _add(self, ids: list[int], digest: int) -> int:
        with self._lock:
            least = min(range(len(self._loads)), key=self._loads.__getitem__)
            group = self._groups.setdefault(digest, Group(least))
            group.size += 1
            self._loads[group.server] += 1
            node = next(self._numbers)
            self._open[node] = History(ids, digest, group)
            return node

    def server(self, history: History, here: Sequence[int]) -> int:
        """Returns the server of a history. If this server is not among the servers ``here``, the history and all that
        were opened with the same tokens first move to the server with the fewest open histories among ``here``.
        """
        with self._lock:
            group = history.group
            if group.server not in here:
                self._loads[group.server] -= group.size
                group.server = min(here, key=self._loads.__getitem__)
                self._loads[group.server] += group.size
            return group.server

    def __getitem__(self, node: int) -> History:
        """Returns the open history of a node, or raises RuntimeError if the node is closed."""
        try:
            return self._open[node]
        except KeyError:
            raise RuntimeError(
                f"node {node} is closed; loading weights closes all nodes, unless engine.in_flight=true"
            ) from None

    def __contains__(self, node: int) -> bool:
        return node in self._open

    def close(self, nodes: Sequence[int]) -> None:
        """Closes the histories of these nodes. Closed nodes are ignored."""
        with self._lock:
            for node in nodes:
                if (history := self._open.pop(node, None)) is not None:
                    self._loads[history.server] -= 1
                    history.group.size -= 1
                    if not history.group.size:
                        del self._groups[history.digest]

    def clear(self) -> None:
        self.close(list(self._open))
