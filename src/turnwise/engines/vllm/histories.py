"""Keeps the open histories of an engine: the token ids of each history, and the server that gets its requests."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(slots=True)
class History:
    """The ids of all tokens of one history so far.

    ``digest`` is the CRC-32 of the tokens with which the history was opened. ``server`` is the number of the server
    that gets the history's requests.
    """

    ids: list[int]
    digest: int
    server: int


class Histories:
    """Open histories by node number. A node number is never used twice.

    Histories that were opened with the same tokens share one of the ``servers`` servers, and so its prefix cache. The
    first of them goes to the server with the fewest open histories. Any thread may call the methods.
    """

    def __init__(self, servers: int = 1) -> None:
        self._open: dict[int, History] = {}
        self._numbers = count(1)
        self._loads = [0] * servers  # number of open histories of each server
        self._alike: Counter[int] = Counter()  # number of open histories by digest
        self._server: dict[int, int] = {}  # the server of all open histories with a digest
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
            server = self._server.setdefault(digest, least)
            self._alike[digest] += 1
            self._loads[server] += 1
            node = next(self._numbers)
            self._open[node] = History(ids, digest, server)
            return node

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
                    self._alike[history.digest] -= 1
                    if not self._alike[history.digest]:
                        del self._alike[history.digest], self._server[history.digest]

    def clear(self) -> None:
        self.close(list(self._open))
