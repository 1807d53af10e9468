"""A token trie (prefix tree), in which token sequences share the tokens of their common prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


class Trie:
    """A trie whose nodes are tokens. A node has at most one child for each token id."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def shared(self, ids: Sequence[int], at: int = -1) -> tuple[int, int]:
        """Returns the length of the longest prefix of ``ids`` that is a path below node ``at`` (-1: the root), and the
        last node of this path. If no prefix is a path, the result is (0, ``at``).
        """
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
        """Returns the trie as one sequence of tokens in depth-first order: the descendants of a node directly follow
        the node.
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
    """A token trie as one packed sequence of S tokens, in depth-first order."""

    ids_S: np.ndarray
    position_S: np.ndarray  # the token's position on its path from the root, counted from 0
    end_S: np.ndarray  # the index one past the token's last descendant
    place_N: np.ndarray  # for each of the N nodes of the trie, the node's index in the sequence
