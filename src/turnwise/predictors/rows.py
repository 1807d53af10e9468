"""Histories of trees as rows of tokens: each rollout's spine is read once, and every history on it is asked about there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from turnwise.types import RolloutTree

Place = tuple[int, int]
"""Number of a tree in the list that was asked about, and its turn after which the history ends (-1: the state)."""


@dataclass(slots=True)
class Histories:
    """One causal forward pass: B spines, padded on the right to S tokens, and where in them the Q histories end."""

    ids_BS: Tensor
    end_Q: Tensor  # flat places in B * S
    places: list[Place]


@dataclass(slots=True)
class _Spine:
    ids: list[int]
    ends: list[tuple[Place, int]] = field(default_factory=list)  # and the place of the history's last token


def read_spines(trees: Sequence[RolloutTree], wanted: Sequence[Collection[int]], batch_tokens: int) -> list[Histories]:
    """Every wanted history once, on the first spine that it lies on, which is read as far as its last history.

    Spines are not packed on one another, though those of a tree share its state: a mask over a tree costs the square of its
    tokens, while a spine alone runs under causal attention and costs the state again.

    Args:
        trees: whose histories.
        wanted: for each tree the turns after which a history is asked about; -1 is its state.
        batch_tokens: padded tokens of one pass (a single spine may be longer).

    Raises:
        ValueError: a tree has no such turn.
    """
    spines: list[_Spine] = []
    for number, (tree, turns) in enumerate(zip(trees, wanted, strict=True)):
        missing = set(turns)
        for leaf in tree.leaves() or [-1]:
            path = [-1, *tree.path(leaf)]
            asked = missing.intersection(path)
            if asked:
                spines.append(_spine(number, tree, path, asked))
                missing -= asked
        if missing:
            raise ValueError(f"state {tree.state.id!r} has no turns {sorted(missing)}")
    spines.sort(key=lambda spine: len(spine.ids), reverse=True)
    passes: list[list[_Spine]] = []
    for spine in spines:
        if passes and (len(passes[-1]) + 1) * len(passes[-1][0].ids) <= batch_tokens:
            passes[-1].append(spine)
        else:
            passes.append([spine])
    return [_histories(spines) for spines in passes]


def branchable(tree: RolloutTree) -> list[int]:
    """The state and every turn that another follows: the histories that an episode went on from."""
    parents = {turn.parent for turn in tree.turns}
    return [-1, *(i for i in range(len(tree.turns)) if i in parents)]


def _spine(number: int, tree: RolloutTree, path: Sequence[int], asked: set[int]) -> _Spine:
    spine = _Spine([])
    for turn in path:
        spine.ids += tree.state.ids if turn < 0 else tree.turns[turn].action_ids + tree.turns[turn].observation_ids
        if turn in asked:
            spine.ends.append(((number, turn), len(spine.ids) - 1))
    last = spine.ends[-1][1]
    spine.ids = spine.ids[: last + 1]
    return spine


def _histories(spines: Sequence[_Spine]) -> Histories:
    S = max(len(spine.ids) for spine in spines)
    ids_BS = torch.zeros(len(spines), S, dtype=torch.long)
    places: list[Place] = []
    ends: list[int] = []
    for b, spine in enumerate(spines):
        ids_BS[b, : len(spine.ids)] = torch.tensor(spine.ids)
        for place, end in spine.ends:
            places.append(place)
            ends.append(b * S + end)
    return Histories(ids_BS, torch.tensor(ends), places)
