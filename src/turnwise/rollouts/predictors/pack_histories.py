"""Packs histories of rollout trees into rows of tokens, for the critic.

A token that several histories, rollouts or trees share is stored only once in a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnwise.rollouts.trie import Trie
from turnwise.types import RolloutTree

Place = tuple[int, int]
"""Names a history: the index of its tree in the given list, and the turn after which it ends (-1: the root state)."""


@dataclass(slots=True)
class Histories:
    """The inputs of one forward pass: one row (B = 1) of S packed tokens that contain Q histories.

    ``models.packed_logprobs.PackedTokens`` explains the packed layout.
    """

    ids_BS: Tensor
    position_BS: Tensor
    end_BS: Tensor
    last_Q: Tensor  # index of each history's last token in the row
    places: list[Place]  # the names of the Q histories


@dataclass(slots=True)
class _Spine:
    ids: list[int]
    lasts: list[tuple[Place, int]] = field(default_factory=list)  # histories, and the indices of their last tokens


@dataclass(slots=True)
class _Row:
    trie: Trie = field(default_factory=Trie)
    lasts: list[tuple[Place, int]] = field(default_factory=list)  # histories, and the trie nodes of their last tokens


def read_spines(trees: Sequence[RolloutTree], wanted: Sequence[Collection[int]], batch_tokens: int) -> list[Histories]:
    """Packs every requested history once, as a part of the first path of its tree that contains it.

    A path is packed only up to its last requested history. Paths with a common prefix share its tokens, even if they
    belong to different trees, because states of one environment begin with the same rules and tools. Paths without a
    common prefix can be in the same row too, but attention does not connect them.

    Args:
        trees: the trees of the histories.
        wanted: for each tree, the turns after which a requested history ends; -1 is the root state.
        batch_tokens: greatest number of tokens of one forward pass. A single path may be longer.

    Raises:
        ValueError: ``wanted`` contains a turn that its tree does not have.
    """
    spines: list[_Spine] = []
    for number, (tree, turns) in enumerate(zip(trees, wanted, strict=True)):
        spines += _spines(number, tree, turns)
    spines.sort(key=lambda spine: spine.ids)  # so that paths with long common prefixes become neighbours
    rows: list[_Row] = []
    for spine in spines:
        if not rows or len(rows[-1].trie) + len(spine.ids) - rows[-1].trie.shared(spine.ids)[0] > batch_tokens:
            rows.append(_Row())
        nodes = rows[-1].trie.add(spine.ids)
        rows[-1].lasts += [(place, nodes[last]) for place, last in spine.lasts]
    return [_histories(row) for row in rows]


def branchable(tree: RolloutTree) -> list[int]:
    """Returns -1 (the root state) and every turn that another turn follows: the places at which rollouts can branch."""
    parents = {turn.parent for turn in tree.turns}
    return [-1, *(i for i in range(len(tree.turns)) if i in parents)]


def _spines(number: int, tree: RolloutTree, turns: Collection[int]) -> Iterator[_Spine]:
    missing = set(turns)
    for leaf in tree.leaves() or [-1]:
        path = [-1, *tree.path(leaf)]
        if asked := missing.intersection(path):
            yield from _split(number, tree, path, asked)
            missing -= asked
    if missing:
        raise ValueError(f"state {tree.state.id!r} has no turns {sorted(missing)}")


def _split(number: int, tree: RolloutTree, path: Sequence[int], asked: set[int]) -> Iterator[_Spine]:
    """Yields, for each conversation of a path, its tokens up to the end of the last requested history in it.

    A path has several conversations if observations begin new ones (``Turn.anew``). ``asked`` holds the turns after
    which a requested history ends. Conversations without a requested history are left out.
    """
    spine = _Spine([])
    for turn in path:
        if turn >= 0 and tree.turns[turn].anew:
            yield from _cut(spine)
            spine = _Spine(list(tree.turns[turn].observation_ids))
        else:
            spine.ids += tree.state.ids if turn < 0 else tree.turns[turn].action_ids + tree.turns[turn].observation_ids
        if turn in asked:
            spine.lasts.append(((number, turn), len(spine.ids) - 1))
    yield from _cut(spine)


def _cut(spine: _Spine) -> Iterator[_Spine]:
    if spine.lasts:
        yield _Spine(spine.ids[: spine.lasts[-1][1] + 1], spine.lasts)


def _histories(row: _Row) -> Histories:
    layout = row.trie.layout()
    ids, position, end = (torch.from_numpy(of_S)[None] for of_S in (layout.ids_S, layout.position_S, layout.end_S))
    last_Q = torch.from_numpy(layout.place_N[[node for _, node in row.lasts]])
    return Histories(ids, position, end, last_Q, [place for place, _ in row.lasts])
