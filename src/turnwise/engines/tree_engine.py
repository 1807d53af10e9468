"""Samples actions in this process and computes each shared prefix only once (the tree engine).

    open(history) -> node        returns a node; histories with a common prefix share its keys and values
    fork(node)    -> node        costs nothing: both nodes use one row until a node grows
    extend(node, observation)    records the tokens; they are computed together with the next sample
    sample(nodes)                prefills new tokens, then decodes all nodes in one batch

A node is a stored row and a length. If other nodes have already extended the row beyond a node's length, the row is
copied before that node grows. So no node attends to tokens of other nodes only. ``engines/cache.py`` decides which rows
keep their keys and values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt

from turnwise.engines.cache import (
    CacheRows,
    CacheStops,
    CacheStore,
    EndToEnd,
    Mark,
    Segment,
    SideBySide,
    StoredRow,
    segments_from,
    sizes_of,
)
from turnwise.engines.decoding import Node, decode
from turnwise.engines.engine import Named, Sample, Sampling, Told
from turnwise.errors import InputError
from turnwise.models.attention import unwrapped, use_tree_attention
from turnwise.models.fast_llama import FastLlama, can_pack, forward_of
from turnwise.models.logprobs import Head
from turnwise.models.policy import plain_copy


class TreeEngine:
    """Samples from a model in this process.

    Args:
        end_ids: tokens that end an action.
        prefill_tokens: greatest number of tokens in one prefill pass, padding included; this bounds memory. A longer
            segment of one history gets a pass of its own.
        copy: True: sample from a copy of the model with adapters merged in, which is faster. False: sample from the
            model that is being trained, without a copy.
        memory_gb: memory limit for stored keys, values and recurrent states, in units of 10^9 bytes; None: no limit.
        schedule: ``rounds`` or ``free`` (see ``engines.engine``).
        weights: data type of the copy's linear layers, not of its head; None: that of the model.
    """

    served = False

    def __init__(
        self,
        end_ids: Sequence[int],
        prefill_tokens: Annotated[int, Ge(1)] = 16384,
        copy: bool = True,
        memory_gb: Annotated[float, Gt(0)] | None = None,
        schedule: Named = "rounds",
        weights: Literal["float16"] | None = None,
    ) -> None:
        self.end_ids = frozenset(end_ids)
        self.prefill_tokens = prefill_tokens
        self.copy = copy
        self.packing = 1  # number of engines that may pack these weights (models/fast_llama.py); 0: none may
        self.schedule = schedule
        self.weights = weights
        self.budget = None if memory_gb is None else int(memory_gb * 1e9)
        self.version = -1
        self.computed_tokens = 0  # number of prefilled tokens since the engine was created
        self.model: Any = None
        self._forward: Any = None  # the forward pass, which may hold packed weights, as the head may
        self._head: Any = None
        self._sizes: Any = None  # key-value heads per layer, and bytes of recurrent states
        self._shape: tuple[Any, ...] | None = None  # the store's constructor arguments
        self._store: CacheStore

    def load_weights(self, model: Any, version: int) -> None:
        self.release()  # so that old packed weights are neither used with new weights nor in memory at the same time
        self.model = plain_copy(model, into=self.model) if self.copy else model
        use_tree_attention(unwrapped(self.model))
        self.renew(version)

    def twin(self) -> TreeEngine:
        """A second engine with the same weights and an empty store. When the weights change, :meth:`renew` it too."""
        other = TreeEngine(list(self.end_ids), self.prefill_tokens, self.copy, weights=self.weights)
        other.budget, other.packing, other.model, other._sizes = self.budget, self.packing, self.model, self._sizes
        return other

    def release(self) -> None:
        """Frees packed weights. The engine cannot sample until :meth:`load_weights` or :meth:`renew` is called."""
        self._forward = self._head = None

    def renew(self, version: int) -> None:
        """Prepares for weights that were changed in place. Open nodes and all keys and values are dropped."""
        self.release()
        packing = self.packing if self.copy else 0
        dtype = None if self.weights is None else getattr(torch, self.weights)
        self._forward, self._head = forward_of(self.model, packing, dtype), Head(self.model, packing)
        if dtype is not None and not (
            packing and isinstance(self._forward, FastLlama) and can_pack(self._head.weight, dtype)
        ):
            raise InputError(
                f"engine.weights={self.weights} is for Llama-like models (Llama, Qwen2, Qwen3) with engine.copy=true on an "
                "x86 CPU; set engine.weights=null"
            )
        self.version = version
        if self._sizes is None:
            self._sizes = sizes_of(self.model)
        weight, (heads, state_bytes) = self._head.weight, self._sizes
        self._recurrent = state_bytes > 0
        kept = self._forward.dtype if isinstance(self._forward, FastLlama) else weight.dtype
        shape = (heads, kept, weight.device, state_bytes, self.budget)
        if self._shape == shape:
            self._store.clear()  # so that rows get the same slots in a resumed run as in an uninterrupted run
        else:
            self._shape, self._store = shape, CacheStore(*shape)
        self._rows = CacheRows(self._store)
        self._nodes: dict[int, Node] = {}
        self.made = 0  # number of nodes made with these weights. They are numbered from 1 on

    def report(self) -> dict[str, float]:
        return {"computed_tokens": self.computed_tokens}

    def shutdown(self) -> None:
        self.release()
        self.model = None
        if self._shape is not None:
            self._store.free()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        if not (ids := list(ids)):
            raise ValueError("a history needs at least one token")
        row, shared = self._rows.find(ids)
        if row is not None and shared == len(ids):
            return self._add(Node(row, shared))
        if row is not None and shared == len(row.ids):
            row.ids.extend(ids[shared:])
            return self._add(Node(row, len(ids)))
        return self._add(Node(self._rows.add(ids, row, shared), len(ids)))

    def fork(self, node: int) -> int:
        source = self._nodes[node]
        return self._add(Node(source.row, source.length, list(source.pending), source.kept, source.hidden))

    def extend(self, node: int, ids: Sequence[int]) -> None:
        state = self._nodes[node]
        state.pending.extend(ids)
        state.hidden = None

    def close(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._nodes.pop(node).row.users -= 1
        if not self._nodes and self._store.large:
            self._store.free()  # an update needs the memory
            self._rows = CacheRows(self._store)

    def _add(self, node: Node) -> int:
        node.row.users += 1
        self.made += 1
        self._nodes[self.made] = node
        return self.made

    def _settle(self, node: Node) -> None:
        """Appends a node's pending tokens to its row, or to a copy of the row if other nodes have made it longer."""
        if not node.pending:
            return
        row = node.row
        if node.length == len(row.ids):
            row.ids.extend(node.pending)
        else:
            node.row = self._rows.add(row.ids[: node.length] + node.pending, row, node.length)
            row.users -= 1
            node.row.users += 1
        self._take_kept(node)
        node.length += len(node.pending)
        node.pending = []
        node.hidden = None

    def _take_kept(self, node: Node) -> None:
        """Stores the keys and values of pending tokens that decoding has already computed, unless the row's own keys and
        values do not end where the pending tokens begin.
        """
        row, kept = node.row, node.kept
        node.kept = None
        if kept is None or row.slot is None or row.computed != node.length:
            return
        self._rows.place([row])
        self._store.write(row.slot, node.length, kept)
        row.computed += kept.length
        if kept.states is not None:
            row.marks[row.computed] = Mark(kept.states)

    # -- forward passes ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        states = [self._nodes[node] for node in nodes]
        for state in states:
            self._settle(state)
        if self._recurrent:
            self._rows.keep_marks((node.row, node.length) for node in self._nodes.values())
        number = {id(row): i for i, row in enumerate({id(state.row): state.row for state in states}.values())}
        order = sorted(range(len(states)), key=lambda i: (number[id(states[i].row)], states[i].length))
        rows = list({id(states[i].row): states[i].row for i in order}.values())
        samples: list[Any] = [None] * len(states)
        for group in self._rows.groups(rows):
            members = {id(row) for row in group}
            chosen = [i for i in order if id(states[i].row) in members]
            self._prefill([states[i] for i in chosen], group)
            # sorted by slot (index of the row), so that samples of one row are neighbours in the batch
            chosen.sort(key=lambda i: (states[i].row.slot, states[i].length))

            def tell(i: int, sample: Sample, places: list[int] = chosen) -> None:
                if on_sample is not None:
                    on_sample(places[i], sample)

            model, batch = (self._forward, self._head, self._store), [states[i] for i in chosen]
            seeds_N = np.array([seeds[i] for i in chosen], dtype=np.uint64)
            drawn = decode(*model, batch, sampling, seeds_N, self.end_ids, tell)
            for i, sample in zip(chosen, drawn, strict=True):
                samples[i] = sample
                states[i].pending.extend(sample.ids)
                states[i].hidden = None
        return samples

    def _prefill(self, states: list[Node], rows: list[StoredRow]) -> None:
        self._rows.place(rows)
        waiting: dict[int, list[Node]] = defaultdict(list)  # slot -> nodes to compute
        for state in states:
            if self._recurrent:
                mark = state.row.marks.get(state.length)
                state.hidden = None if mark is None else mark.hidden
            if state.hidden is None or state.row.computed < state.length:
                assert state.row.slot is not None
                waiting[state.row.slot].append(state)
        lengths = {slot: {node.length for node in nodes} for slot, nodes in waiting.items()}
        segments: list[Segment] = []
        for slot, nodes in waiting.items():
            computed = nodes[0].row.computed
            if self._recurrent:
                segments += segments_from(slot, nodes[0].row.marks, lengths[slot])
                continue
            if (target := max(lengths[slot])) > computed:
                segments.append(Segment(slot, computed, target))
            # A node within the computed part lacks only the hidden state of its last token: this token is recomputed.
            segments.extend(Segment(slot, n - 1, n) for n in lengths[slot] if n <= computed)
        layout = EndToEnd if self._head.weight.device.type == "cpu" else SideBySide
        for chunk in layout.passes(segments, self.prefill_tokens):
            plan = layout(self._store, chunk)
            self.computed_tokens += sum(segment.length for segment in chunk)
            ids = plan.ids([waiting[slot][0].row.ids[start:stop] for slot, start, stop in chunk])
            if self._recurrent:
                stops = CacheStops(plan, chunk, {slot: nodes[0].row.marks for slot, nodes in waiting.items()}, lengths)
            hidden = plan.split(self._forward(ids, plan.place, plan))
            if self._recurrent:
                stops.keep(hidden)
            for (slot, start, stop), states_T in zip(chunk, hidden, strict=True):
                row = waiting[slot][0].row
                row.computed = max(row.computed, stop)
                for node in waiting[slot]:
                    if start < node.length <= stop:
                        node.hidden = states_T[node.length - 1 - start]
