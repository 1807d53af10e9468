"""Histories of trees as packed rows: each rollout's spine is read once, and every history on it is asked about there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turnwise.rollouts.trie import Trie
from turnwise.types import RolloutTree

Place = tuple[int, int]
"""Number of a tree in the list that was asked about, and its turn after which the history ends (-1: the state)."""


@dataclass(slots=True)
class Histories:
    """One forward pass: B rows of S tokens, and where in them the Q histories end (flat places in B * S)."""

    ids_BS: Tensor
    position_BS: Tensor
    end_BS: Tensor
    end_Q: Tensor
    places: list[Place]


def pack_histories(
    trees: Sequence[RolloutTree], wanted: Sequence[Collection[int]], row_tokens: int, batch_tokens: int
) -> list[Histories]:
    """Every wanted history once.

    Args:
        trees: whose histories.
        wanted: for each tree the turns after which a history is asked about; -1 is its state.
        row_tokens: a row that would grow beyond this is closed and its prefix repeated; a single history may be longer.
        batch_tokens: padded tokens of one pass (a single row may be larger).
    """
    rows: list[_Row] = []
    for number, (tree, turns) in enumerate(zip(trees, wanted, strict=True)):
        missing = set(turns)
        spines = [tree.path(leaf) for leaf in tree.leaves()] or [[]]
        for spine in spines:
            path = [-1, *spine]
            asked = [turn for turn in path if turn in missing]
            if not asked:
                continue
            path = path[1 : path.index(asked[-1]) + 1]
            row = _room_for(rows, tree, path, number, row_tokens)
            at = row.state(number, tree)
            for turn in path:
                at = row.turn(number, tree, turn, at)
            row.ends += [((number, turn), row.at[number, turn]) for turn in asked]
            missing -= set(asked)
        if missing:
            raise ValueError(f"state {tree.state.id!r} has no turns {sorted(missing)}")
    rows.sort(key=lambda row: len(row.trie), reverse=True)
    passes: list[list[_Row]] = []
    for row in rows:
        if passes and (len(passes[-1]) + 1) * len(passes[-1][0].trie) <= batch_tokens:
            passes[-1].append(row)
        else:
            passes.append([row])
    return [_histories(rows) for rows in passes]


class _Row:
    """A trie of histories. ``at`` knows the token with which each of them ends."""

    def __init__(self) -> None:
        self.trie = Trie()
        self.at: dict[Place, int] = {}
        self.ends: list[tuple[Place, int]] = []

    def state(self, number: int, tree: RolloutTree) -> int:
        if (number, -1) not in self.at:
            self.at[number, -1] = self.trie.add(tree.state.ids)[-1]
        return self.at[number, -1]

    def turn(self, number: int, tree: RolloutTree, turn: int, parent: int) -> int:
        if (number, turn) not in self.at:
            written = tree.turns[turn]
            self.at[number, turn] = self.trie.add([*written.action_ids, *written.observation_ids], parent)[-1]
        return self.at[number, turn]


def _room_for(rows: list[_Row], tree: RolloutTree, path: Sequence[int], number: int, row_tokens: int) -> _Row:
    """The last row, if what it lacks of the history still fits; otherwise a new one."""
    if rows:
        row = rows[-1]
        new = sum(
            len(tree.turns[t].action_ids) + len(tree.turns[t].observation_ids)
            for t in path
            if (number, t) not in row.at
        )
        if (number, -1) not in row.at:
            new += len(tree.state.ids) - row.trie.shared(tree.state.ids)[0]
        if len(row.trie) + new <= row_tokens:
            return row
    rows.append(_Row())
    return rows[-1]


def _histories(rows: Sequence[_Row]) -> Histories:
    S = max(len(row.trie) for row in rows)
    ids, position, end = (np.zeros((len(rows), S), dtype=np.int64) for _ in range(3))
    places: list[Place] = []
    ends: list[int] = []
    for b, row in enumerate(rows):
        layout = row.trie.layout()
        n = len(layout.ids_S)
        ids[b, :n], position[b, :n], end[b, :n] = layout.ids_S, layout.position_S, layout.end_S
        for place, node in row.ends:
            places.append(place)
            ends.append(b * S + int(layout.place_N[node]))
    return Histories(
        torch.from_numpy(ids), torch.from_numpy(position), torch.from_numpy(end), torch.tensor(ends), places
    )


def branchable(tree: RolloutTree) -> list[int]:
    """The state and every turn that another follows: the histories that an episode went on from."""
    parents = {turn.parent for turn in tree.turns}
    return [-1, *(i for i in range(len(tree.turns)) if i in parents)]
