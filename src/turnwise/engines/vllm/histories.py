"""Keeps the open histories of an engine: the token ids of each history, and a digest that selects its server."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(slots=True)
class History:
    """The ids of all tokens of one history so far.

    ``digest`` is the CRC-32 of the tokens with which the history was opened. It selects the server for the history's
    requests.
    """

    ids: list[int]
    digest: int


class Histories:
    """Open histories by node number. A node number is never used twice."""

    def __init__(self) -> None:
        self._open: dict[int, History] = {}
        self._numbers = count(1)

    def open(self, ids: Sequence[int]) -> int:
        """Opens a new history and returns its node number.

        Raises:
            ValueError: ``ids`` is empty.
        """
        ids = list(ids)
        if not ids:
            raise ValueError("a history needs at least one token")
        return self._add(History(ids, zlib.crc32(b"".join(token.to_bytes(4, "little") for token in ids))))

    def fork(self, node: int) -> int:
        """Copies a history and returns the node number of the copy."""
        source = self[node]
        return self._add(History(list(source.ids), source.digest))

    def _add(self, history: History) -> int:
        node = next(self._numbers)
        self._open[node] = history
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
        for node in nodes:
            self._open.pop(node, None)

    def clear(self) -> None:
        self._open.clear()
