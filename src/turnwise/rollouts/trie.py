"""A token trie: the packed form of any set of paths that share prefixes. Each token is stored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


class Trie:
    """A trie whose nodes are tokens. A node has at most one child per token, so equal continuations merge."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def shared(self, ids: Sequence[int], at: int = -1) -> tuple[int, int]:
        """Returns how many of ``ids`` already exist below node ``at``, and the node of the last of these."""
        for count, token in enumerate(ids):
            node = self._children.get((at, token))
            if node is None:
                return count, at
            at = node
        return len(ids), at

    def add(self, ids: Sequence[int], at: int = -1) -> list[int]:
        """Adds ``ids`` below node ``at`` (-1: the root) and returns the node of each token."""
        nodes = []
        for token in ids:
            node = self._children.get((at, token))
            if node is None:
                node = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(at)
                self._children[at, token] = node
            nodes.append(node)
            at = node
        return nodes

    def layout(self) -> Layout:
        """Returns the trie in depth-first order.

        A node's descendants follow it, so the ancestor mask needs two comparisons.
        """
        count = len(self.tokens)
        size, depth, place, cursor = [1] * count, [0] * count, [0] * count, [0] * count
        for node in range(count - 1, 0, -1):  # parents have smaller numbers than their children
            if self.parents[node] >= 0:
                size[self.parents[node]] += size[node]
        top = 0
        for node, parent in enumerate(self.parents):
            if parent < 0:
                place[node] = top
                top += size[node]
            else:
                place[node] = cursor[parent]
                cursor[parent] += size[node]
                depth[node] = depth[parent] + 1
            cursor[node] = place[node] + 1
        place_N = np.array(place, dtype=np.int64)
        order = np.empty_like(place_N)
        order[place_N] = np.arange(count)
        return Layout(
            ids_S=np.array(self.tokens, dtype=np.int64)[order],
            position_S=np.array(depth, dtype=np.int64)[order],
            end_S=(place_N + np.array(size, dtype=np.int64))[order],
            place_N=place_N,
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """A trie as one training sequence of S tokens."""

    ids_S: np.ndarray
    position_S: np.ndarray  # depth: the token's position on its own path
    end_S: np.ndarray  # one past the token's last descendant
    place_N: np.ndarray  # node -> place in the sequence
