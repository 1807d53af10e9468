"""The in-process tree engine: a shared prefix is computed once, whoever shares it.

    open(history) -> node        histories that share a prefix share its keys and values
    fork(node)    -> node        free: both stand on the same row until one of them grows
    extend(node, observation)    remembered, computed together with the next sample
    sample(nodes)                prefill what is new, then decode all nodes in one batch

A node is a row of the store and a length. Growing a node whose row has already grown past it copies the row first, so no
node ever sees another's tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turnwise.engines.base import Sample, Sampling
from turnwise.engines.draw import draw
from turnwise.engines.prefill import EndToEnd, Segment, SideBySide
from turnwise.engines.store import Decode, Store, Trunk
from turnwise.models.attention import backbone, head_weight, use_tree_attention
from turnwise.models.policy import plain_copy

KEY = 16  # tokens; histories are looked up by their beginning


@dataclass(slots=True)
class _Row:
    ids: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose keys and values are stored
    users: int = 0


@dataclass(slots=True)
class _Node:
    row: int
    length: int
    pending: list[int] = field(default_factory=list)  # tokens that are in no row yet
    kept: tuple[Tensor, Tensor] | None = None  # keys and values (layers, H_kv, t, D) of the first t of them
    hidden: Tensor | None = None  # (D,) last hidden state, from which the next token is drawn


class TreeEngine:
    """Args:
    end_ids: tokens that end an action.
    prefill_tokens: padded tokens of one prefill pass; bounds memory.
    copy: sample from a plain copy with adapters merged in (faster); False samples from the live module (no second copy).
    """

    def __init__(self, end_ids: Sequence[int], prefill_tokens: int = 16384, copy: bool = True) -> None:
        self.end_ids = frozenset(end_ids)
        self.prefill_tokens = prefill_tokens
        self.copy = copy
        self.version = -1
        self.computed_tokens = 0  # prefilled since the start, for throughput reports
        self._model: Any = None
        self._forget()

    def _forget(self) -> None:
        self._rows: list[_Row] = []
        self._nodes: dict[int, _Node] = {}
        self._free: list[int] = []
        self._index: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self._next = 0
        self._store: Store | None = None

    def load_weights(self, model: Any, version: int) -> None:
        """Sample from these weights from now on. Open nodes are closed and every key and value is dropped."""
        if self.copy:
            self._model = plain_copy(model, into=self._model)
        else:
            self._model = model
        use_tree_attention(self._model.get_base_model() if hasattr(self._model, "get_base_model") else self._model)
        self._backbone, self._head = backbone(self._model), head_weight(self._model)
        self.version = version
        self._forget()
        config = self._model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._store = Store(
            config.num_hidden_layers, config.num_key_value_heads, head_dim, self._head.dtype, self._head.device
        )

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def open(self, ids: Sequence[int]) -> int:
        ids = list(ids)
        if not ids:
            raise ValueError("a history needs at least one token")
        best, shared = -1, 0
        for row in self._index.get(tuple(ids[:KEY]), ()):
            common = _common(self._rows[row].ids, ids)
            if common > shared:
                best, shared = row, common
        if best >= 0 and shared == len(ids):
            return self._add(_Node(best, shared))
        if best >= 0 and shared == len(self._rows[best].ids):
            self._rows[best].ids.extend(ids[shared:])
            return self._add(_Node(best, len(ids)))
        return self._add(_Node(self._new_row(ids, copy_from=best, length=shared), len(ids)))

    def fork(self, node: int) -> int:
        source = self._nodes[node]
        return self._add(_Node(source.row, source.length, list(source.pending), source.kept, source.hidden))

    def extend(self, node: int, ids: Sequence[int]) -> None:
        state = self._nodes[node]
        state.pending.extend(ids)
        state.hidden = None

    def close(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            row = self._nodes.pop(node).row
            self._rows[row].users -= 1
            if self._rows[row].users == 0:
                self._free.append(row)  # still matched by open() until someone needs the place

    def _add(self, node: _Node) -> int:
        if self._rows[node.row].users == 0 and node.row in self._free:
            self._free.remove(node.row)
        self._rows[node.row].users += 1
        self._next += 1
        self._nodes[self._next] = node
        return self._next

    def _new_row(self, ids: list[int], copy_from: int, length: int) -> int:
        """A row that holds ``ids``; the first ``length`` of them are copied from another row as far as it is computed."""
        assert self._store is not None, "load_weights first"
        reusable = next((r for r in self._free if r != copy_from), None)
        if reusable is not None:
            self._free.remove(reusable)
            row = reusable
            old_key = tuple(self._rows[row].ids[:KEY])
            self._index[old_key].remove(row)
            self._rows[row] = _Row(ids)
        else:
            row = len(self._rows)
            self._rows.append(_Row(ids))
        self._index[tuple(ids[:KEY])].append(row)
        self._store.reserve(len(self._rows), len(ids))
        if copy_from >= 0:
            known = min(length, self._rows[copy_from].computed)
            self._store.copy_row(copy_from, row, known)
            self._rows[row].computed = known
        return row

    def _settle(self, node: _Node) -> None:
        """Move a node's pending tokens into a row of which it is the end."""
        if not node.pending:
            return
        row = self._rows[node.row]
        if node.length == len(row.ids):
            row.ids.extend(node.pending)
        else:
            fresh = self._new_row(row.ids[: node.length] + node.pending, copy_from=node.row, length=node.length)
            row.users -= 1
            if row.users == 0:
                self._free.append(node.row)
            self._rows[fresh].users += 1
            node.row = fresh
        self._take_kept(node)
        node.length += len(node.pending)
        node.pending = []
        node.hidden = None

    def _take_kept(self, node: _Node) -> None:
        """What decoding computed of the pending tokens is not computed again."""
        row = self._rows[node.row]
        if node.kept is not None and row.computed == node.length:
            assert self._store is not None
            self._store.reserve(len(self._rows), len(row.ids))
            self._store.write(node.row, node.length, *node.kept)
            row.computed += node.kept[0].shape[2]
        node.kept = None

    # -- forward passes ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def sample(self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int]) -> list[Sample]:
        if not nodes:
            return []
        states = [self._nodes[node] for node in nodes]
        for state in states:
            self._settle(state)
        self._prefill(states)
        order = sorted(range(len(states)), key=lambda i: (states[i].row, states[i].length))
        drawn = self._decode([states[i] for i in order], sampling, np.array([seeds[i] for i in order], dtype=np.uint64))
        samples: list[Any] = [None] * len(states)
        for i, sample in zip(order, drawn, strict=True):
            samples[i] = sample
            states[i].pending.extend(sample.ids)
            states[i].hidden = None
        return samples

    def _prefill(self, states: list[_Node]) -> None:
        """Compute keys and values up to every node's length, and the hidden state it draws from."""
        waiting: dict[int, list[_Node]] = defaultdict(list)
        for state in states:
            if state.hidden is None:
                waiting[state.row].append(state)
        segments: list[Segment] = []
        for row, nodes in waiting.items():
            computed = self._rows[row].computed
            target = max(node.length for node in nodes)
            if target > computed:
                segments.append(Segment(row, computed, target))
            # A node inside what is computed needs its last hidden state back: that one token again.
            segments.extend(Segment(row, n - 1, n) for n in {node.length for node in nodes} if n <= computed)
        layout = EndToEnd if self._head.device.type == "cpu" else SideBySide
        for chunk in layout.passes(segments, self.prefill_tokens):
            for (row, start, stop), states_T in zip(chunk, self._forward_segments(layout, chunk), strict=True):
                self._rows[row].computed = max(self._rows[row].computed, stop)
                for node in waiting[row]:
                    if start < node.length <= stop:
                        node.hidden = states_T[node.length - 1 - start]

    def _forward_segments(self, layout: type[EndToEnd | SideBySide], segments: list[Segment]) -> Sequence[Tensor]:
        assert self._store is not None
        self._store.reserve(len(self._rows), max(segment.stop for segment in segments))
        plan = layout(self._store, segments)
        self.computed_tokens += sum(segment.length for segment in segments)
        ids = plan.ids([self._rows[row].ids[start:stop] for row, start, stop in segments])
        return plan.split(self._run(ids, plan.place, plan))

    def _run(self, ids: Tensor, positions: Tensor, plan: Any) -> Tensor:
        return self._backbone(input_ids=ids, position_ids=positions, use_cache=False, plan=plan).last_hidden_state

    def _decode(self, states: list[_Node], sampling: Sampling, seeds_N: np.ndarray) -> list[Sample]:
        """Draw all samples step by step. Samples that have written the same so far are one twig (axis _U) until they part."""
        assert self._store is not None
        device = self._head.device
        rows_N = torch.tensor([s.row for s in states], device=device)
        trunk = Trunk.of(self._store, rows_N, max(s.length for s in states))
        heads, twig_N = _distinct([(s.row, s.length) for s in states])
        length_U = torch.tensor([states[i].length for i in heads], device=device)
        plan = Decode(trunk, trunk.row_N[heads], length_U, sampling.max_tokens)
        hidden_U = torch.stack([states[i].hidden for i in heads])  # type: ignore[misc]
        samples = [Sample([], [], truncated=True) for _ in states]
        live = np.arange(len(states))
        for step in range(sampling.max_tokens):
            logits_U = hidden_U @ self._head.T
            tokens_N, logps_N = draw(logits_U[torch.from_numpy(twig_N).to(device)], sampling, seeds_N[live], step)
            going = np.ones(len(live), dtype=bool)
            for place, (i, token, logp) in enumerate(zip(live, tokens_N.tolist(), logps_N.tolist(), strict=True)):
                samples[i].ids.append(token)
                samples[i].logprobs.append(logp)
                if token in self.end_ids:
                    going[place], samples[i].truncated = False, False
            last = not going.any() or step + 1 == sampling.max_tokens
            for i, twig in zip(live[~going | last], twig_N[~going | last], strict=True):
                states[i].kept = plan.twig(twig) if not states[i].pending and step else None
            if last:
                break
            live, written = live[going], tokens_N.cpu().numpy()[going]
            twigs, twig_N = np.unique(twig_N[going] * len(self._head) + written, return_inverse=True)
            parent_U, token_U = (torch.from_numpy(x).to(device) for x in np.divmod(twigs, len(self._head)))
            plan.branch(parent_U)
            length_U = length_U[parent_U]
            hidden_U = self._run(token_U[:, None], (length_U + step)[:, None], plan)[:, 0]
            plan.length += 1
        return samples


def _distinct(keys: list[tuple[int, int]]) -> tuple[list[int], np.ndarray]:
    """First place of each distinct key, in order, and for each place the number of its key."""
    number: dict[tuple[int, int], int] = {}
    first: list[int] = []
    for place, key in enumerate(keys):
        if key not in number:
            number[key] = len(first)
            first.append(place)
    return first, np.array([number[key] for key in keys])


def _common(a: list[int], b: list[int]) -> int:
    """Length of the common prefix, by bisection on slice equality (compared in C)."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
