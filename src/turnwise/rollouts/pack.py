"""Packs trees and their credit into micro-batches in which every token is stored once.

All paths that share a prefix (a group, the turns of one trajectory, the branches of a tree) go into one token trie.
Equal samples are merged too. The loss reads *items*: one item for each trained token of each turn, with the index of
the token's log-prob and with the credit of the turn. Items are not merged, so packing does not change the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnwise.methods.loss import Counts
from turnwise.types import Credit, RolloutTree


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
        last node of this path, which is ``at`` for length 0.
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


# -- packing -----------------------------------------------------------------------------------------------------------


MERGE = 0.5  # a path joins a row if the row already holds at least this fraction of the state's tokens


@dataclass(slots=True)
class Items:
    """The K items of a micro-batch. There is one item for each trained token of each turn."""

    unique_K: Tensor  # index of the item's token among the micro-batch's U predicted tokens
    old_logprob_K: Tensor  # log-prob under the policy that sampled the token
    advantage_K: Tensor
    weight_K: Tensor
    turn_K: Tensor  # number of the turn within the whole update
    sequence_K: Tensor  # number of the sample (Credit.sample) within the whole update
    share_K: Tensor  # 1 / (number of trees of the update x number of samples of the token's tree)
    length_K: Tensor  # number of trained tokens of the whole sample, also of those that earlier samples share
    clip_low_K: Tensor | None = None
    clip_high_K: Tensor | None = None
    near_logprob_K: Tensor | None = None  # log-prob under the policy before the iteration's first optimiser step
    views: dict[str, Tensor] = field(default_factory=dict)  # name -> other advantages (K,), for diagnostics

    def map(self, act: Callable[[Tensor], Tensor]) -> Items:
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "views"}
        changed: dict[str, Any] = {name: value if value is None else act(value) for name, value in columns.items()}
        return Items(**changed, views={name: act(value) for name, value in self.views.items()})


@dataclass(slots=True)
class Packed:
    """One micro-batch: B rows of S packed tokens, U predicted tokens, and K items."""

    ids_BS: Tensor
    position_BS: Tensor
    end_BS: Tensor
    source_U: Tensor  # index (in the flattened B * S tokens) of the token before the predicted token
    target_U: Tensor
    items: Items

    def to(self, device: torch.device) -> Packed:
        items = self.items.map(lambda value_K: value_K.to(device))
        tensors = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name != "items"}
        return Packed(**tensors, items=items)


@dataclass(slots=True)
class Update:
    """All micro-batches of one optimiser step. Each turn and each sequence lies within one micro-batch."""

    batches: list[Packed]
    counts: Counts  # counts of the whole update, so that the split into micro-batches does not change the loss
    stored_tokens: int  # number of tokens in the packed rows
    path_tokens: int  # number of tokens of all paths without packing

    def share(self, rank: int, world: int) -> Update:
        """Returns the micro-batches of process ``rank`` of ``world``, with the ``counts`` of the whole update.

        All processes get equally many micro-batches, because processes that average gradients or shard weights must run
        equally many passes. A process with one micro-batch too few also gets a copy of the last micro-batch of the
        update, with weights 0.
        """
        mine = self.batches[rank::world]
        if len(mine) * world < len(self.batches):
            spare = self.batches[-1]  # the last micro-batch has the shortest rows
            nothing = replace(spare.items, weight_K=torch.zeros_like(spare.items.weight_K))
            mine = [*mine, replace(spare, items=nothing)]
        return replace(self, batches=mine)


class _Trained(NamedTuple):
    """A trained turn of a row. Each of its tokens becomes an item."""

    nodes: list[int]  # of the turn's tokens in the row's trie
    parent: int  # node of the token before the turn
    logprobs: list[float]
    credit: Credit
    place: int  # index of the turn in its tree
    number: int  # of the turn within the update
    sequence: int
    share: float
    length: int


class _Row:
    def __init__(self) -> None:
        self.trie = Trie()
        self.turns: list[_Trained] = []


def pack(
    trees: Sequence[RolloutTree],
    credits: Sequence[Credit],
    row_tokens: int = 2048,
    batch_tokens: int = 8192,
    merge: bool = True,
) -> Update:
    """Packs rollout trees and their credit into the micro-batches of one update. Trees with ``stopped`` are left out.

    Args:
        credits: the credit of each tree. Turns of weight 0 are only context. Trees whose turns all have weight 0 are
            left out.
        row_tokens: greatest number of tokens of a row, which bounds the quadratic cost of attention. A path that does
            not fit starts a new row, which repeats the prefix. A long shared prefix allows longer rows
            (:func:`row_limit`). A row with a single path may be longer.
        batch_tokens: greatest number of tokens of a micro-batch, including padding. A micro-batch with a single row may
            be larger.
        merge: False gives every path its own row: the usual padded layout, for comparison.
    """
    rows: list[_Row] = []
    tokens = turns = sequences = path_tokens = 0
    trained = [i for i in range(len(trees)) if not trees[i].stopped and any(credits[i].weight)]
    order = sorted(trained, key=lambda i: (trees[i].state.trajectory or trees[i].state.id, len(trees[i].state.ids), i))
    for index in order:
        tree, credit = trees[index], credits[index]
        sample_of = credit.sample or tree.first_leaves()
        samples = {sample for sample, weight in zip(sample_of, credit.weight, strict=True) if weight}
        share = 1 / (len(trained) * len(samples))
        length_of = credit.lengths(tree)
        sequence_of: dict[int, int] = {}
        done: set[int] = set()
        root: tuple[_Row, int] | None = None  # the row and node at which the tree's state ends
        for leaf in tree.leaves():
            path = tree.path(leaf)
            wanted = [t for t in path if credit.weight[t] and t not in done]
            path_tokens += len(tree.state.ids) + sum(
                len(tree.turns[t].action_ids) + len(tree.turns[t].observation_ids) for t in path
            )
            if not wanted:
                continue
            path = path[: path.index(wanted[-1]) + 1]  # turns after the last trained turn are not needed
            row, at = root = _place_in_row(rows, tree.state.ids, _segments(tree, path), row_tokens, merge, root)
            for t in path:
                turn = tree.turns[t]
                nodes = row.trie.add(turn.action_ids, at)
                if t in wanted:
                    done.add(t)
                    sequence = sequence_of.setdefault(sample_of[t], sequences)
                    sequences = max(sequences, sequence + 1)
                    of_sample = sequence, share, length_of[sample_of[t]]
                    row.turns.append(_Trained(nodes, at, turn.logprobs, credit, t, turns, *of_sample))
                    turns, tokens = turns + 1, tokens + len(nodes)
                if t != path[-1]:
                    at = [nodes[-1], *row.trie.add(turn.observation_ids, -1 if turn.anew else nodes[-1])][-1]
    batches = [_packed_batch(chunk) for chunk in _chunks(rows, batch_tokens)]
    counts = Counts(tokens=tokens, sequences=sequences, turns=turns)
    return Update(batches, counts, sum(len(row.trie) for row in rows), path_tokens)


def _segments(tree: RolloutTree, path: Sequence[int]) -> list[list[int]]:
    """Returns the tokens of a path after its state, without the last observation, as one list for each conversation:
    the first continues that of the state, and turns with ``anew`` begin new ones.
    """
    segments: list[list[int]] = [[]]
    for t in path:
        turn = tree.turns[t]
        segments[-1] += turn.action_ids
        if t != path[-1]:
            segments += [[] for _ in range(turn.anew)]
            segments[-1] += turn.observation_ids
    return segments


def _place_in_row(
    rows: list[_Row],
    state: Sequence[int],
    segments: Sequence[Sequence[int]],
    row_tokens: int,
    merge: bool,
    root: tuple[_Row, int] | None,
) -> tuple[_Row, int]:
    """Returns the row for a path, and the node of the row at which the path's state ends. The row is the last row of
    ``rows`` if the path shares a long enough prefix with this row and fits into it, else a new row. ``root`` is the
    result for an earlier path of the same tree, which saves a search for the state in the row.
    """
    if merge and rows:
        row = rows[-1]
        if root is not None and root[0] is row:
            shared, at = len(state), root[1]
        else:
            shared, at = row.trie.shared(state)
        if shared == len(state):
            shared += row.trie.shared(segments[0], at)[0]
        grown = len(row.trie) + len(state) + sum(map(len, segments)) - shared
        if shared >= MERGE * len(state) and grown <= row_limit(shared, row_tokens):
            return row, row.trie.add(state)[-1] if shared < len(state) else at
    rows.append(_Row())
    return rows[-1], rows[-1].trie.add(state)[-1]


def row_limit(shared: float, row_tokens: float) -> float:
    """Returns the greatest length of a row to which a path is added. The row has the path's first ``shared`` tokens.

    The limit is the greater of ``row_tokens`` and min(2 ``shared``, ``shared`` + ``row_tokens``). The reason is the
    cost: one row of 2 s tokens has fewer tokens and fewer attention pairs (4 s^2) than two rows of 1.5 s tokens that
    both begin with the same s tokens (4.5 s^2).
    """
    return max(row_tokens, shared + min(shared, row_tokens))


def _chunks(rows: list[_Row], batch_tokens: int) -> list[list[_Row]]:
    chunks: list[list[_Row]] = []
    for row in sorted(rows, key=lambda r: len(r.trie), reverse=True):
        if chunks and (len(chunks[-1]) + 1) * len(chunks[-1][0].trie) <= batch_tokens:
            chunks[-1].append(row)
        else:
            chunks.append([row])
    return chunks


def _packed_batch(rows: list[_Row]) -> Packed:
    S = max(len(row.trie) for row in rows)
    ids, position, end = (np.zeros((len(rows), S), dtype=np.int64) for _ in range(3))
    unique: dict[tuple[int, int], int] = {}
    source: list[int] = []
    target: list[int] = []
    unique_K: list[int] = []
    for b, row in enumerate(rows):
        layout = row.trie.layout()
        n = len(layout.ids_S)
        ids[b, :n], position[b, :n], end[b, :n] = layout.ids_S, layout.position_S, layout.end_S
        for turn in row.turns:
            for parent, node in zip([turn.parent, *turn.nodes], turn.nodes, strict=False):
                u = unique.setdefault((b, node), len(source))
                if u == len(source):
                    source.append(b * S + int(layout.place_N[parent]))
                    target.append(row.trie.tokens[node])
                unique_K.append(u)
    turns = [turn for row in rows for turn in row.turns]
    count_T = torch.tensor([len(turn.nodes) for turn in turns])

    def column(values: Iterable[object], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(list(values), dtype=dtype).repeat_interleave(count_T, 0)

    packed = Items(
        unique_K=torch.tensor(unique_K),
        old_logprob_K=torch.tensor([logprob for turn in turns for logprob in turn.logprobs], dtype=torch.float32),
        advantage_K=column(turn.credit.advantage[turn.place] for turn in turns),
        weight_K=column(turn.credit.weight[turn.place] for turn in turns),
        turn_K=column((turn.number for turn in turns), torch.long),
        sequence_K=column((turn.sequence for turn in turns), torch.long),
        share_K=column(turn.share for turn in turns),
        length_K=column(turn.length for turn in turns),
    )
    if any(turn.credit.clip_low and turn.credit.clip_high for turn in turns):
        low, high = (
            column(clip[turn.place] if (clip := getattr(turn.credit, name)) else math.nan for turn in turns)
            for name in ("clip_low", "clip_high")
        )
        packed = replace(packed, clip_low_K=low, clip_high_K=high)
    for name in sorted({name for turn in turns for name in turn.credit.views or ()}):
        # a turn whose tree does not have this view gets the advantage of the loss
        chosen = [(turn.credit.views or {}).get(name, turn.credit.advantage) for turn in turns]
        packed.views[name] = column(values[turn.place] for values, turn in zip(chosen, turns, strict=True))
    return Packed(
        ids_BS=torch.from_numpy(ids),
        position_BS=torch.from_numpy(position),
        end_BS=torch.from_numpy(end),
        source_U=torch.tensor(source),
        target_U=torch.tensor(target),
        items=packed,
    )


# -- smaller micro-batches, for devices whose memory is too small for a whole one --------------------------------------


def smaller_packed(batches: list[Packed], times: int) -> list[Packed]:
    """Splits each micro-batch into two with half of its rows, in ``times`` rounds. The order of rows is kept.

    A micro-batch with a single row is not split. The split does not change the loss, because each turn and each
    sequence lies within one row, and because means are taken over the whole update.
    """
    for _ in range(times):
        batches = [half for packed in batches for half in _halves(packed)]
    return batches


def _halves(packed: Packed) -> list[Packed]:
    B = len(packed.ids_BS)
    return [_packed_rows(packed, 0, B // 2), _packed_rows(packed, B // 2, B)] if B > 1 else [packed]


def _packed_rows(packed: Packed, first: int, last: int) -> Packed:
    S = packed.ids_BS.shape[1]
    row_U = packed.source_U // S
    kept_U = (row_U >= first) & (row_U < last)
    kept_K = kept_U[packed.items.unique_K]
    items = packed.items.map(lambda value_K: value_K[kept_K])
    longest = int((packed.end_BS[first:last] > 0).any(0).nonzero().max()) + 1
    source_U = packed.source_U[kept_U]
    return Packed(
        ids_BS=packed.ids_BS[first:last, :longest],
        position_BS=packed.position_BS[first:last, :longest],
        end_BS=packed.end_BS[first:last, :longest],
        source_U=(source_U // S - first) * longest + source_U % S,
        target_U=packed.target_U[kept_U],
        items=replace(items, unique_K=(kept_U.cumsum(0) - 1)[items.unique_K]),
    )
