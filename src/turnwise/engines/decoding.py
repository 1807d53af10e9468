"""Samples actions token by token, for many samples that share prefixes and are already prefilled.

In attention, the *trunk* holds the shared prefixes, one per row. A *twig* is a branch of sampled tokens that continues
one row. Samples that continue the same row with equal tokens share one twig. The randomness of a draw (temperature,
top-k, top-p, min-p) depends only on each request's own seed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from turnwise.engines.cache import CLOSE, CacheStore, Kept, StoredRow, steps
from turnwise.engines.engine import Sample, Sampling, Told
from turnwise.models.attention import HIDDEN, PLAIN, Rules
from turnwise.models.attention_cpu import merge, seen_attention_cpu
from turnwise.models.logprobs import Head
from turnwise.models.recurrence import States, pick, stack_states


def uniforms(seeds_N: np.ndarray, step: int) -> np.ndarray:
    """Returns one uniform random number in (0, 1) per request, from the counter-based generator splitmix64.

    The number depends only on the request's seed and step, not on the rest of the batch.
    """
    with np.errstate(over="ignore"):
        z = seeds_N.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(step + 1)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return ((z >> np.uint64(11)).astype(np.float64) + 0.5) / float(1 << 53)


def keep_mask(probs: Tensor, sampling: Sampling) -> Tensor | None:
    """Returns a boolean mask (N, V) of the tokens that top-k, top-p and min-p allow, always with the most likely one, or
    None if no filter is set.
    """
    if sampling.top_k == 0 and sampling.top_p >= 1 and sampling.min_p <= 0:
        return None
    ranked, order = probs.sort(dim=-1, descending=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
    if sampling.top_p < 1:
        keep &= ranked.cumsum(-1) - ranked < sampling.top_p
    if sampling.min_p > 0:
        keep &= ranked >= sampling.min_p * ranked[:, :1]
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter(1, order, keep)


def draw_tokens(
    logits_U: Tensor,
    sampling: Sampling,
    seeds_N: np.ndarray,
    step: int,
    context_N: np.ndarray | None = None,
) -> tuple[Tensor, Tensor]:
    """Samples one token per request and returns the tokens (N,) int64 and their log-probs (N,) float32.

    The log-probs are those of the distribution from which the tokens are sampled: after temperature and filters,
    renormalised. With greedy decoding, they are the log-probs at temperature 1.

    Args:
        logits_U: logits (U, V), one row per distinct context.
        step: index of the token within its action.
        context_N: for each request, its row of ``logits_U``; None: row i belongs to request i.
    """
    logits_U = logits_U.float()
    context_N = np.arange(len(logits_U)) if context_N is None else context_N
    of = torch.from_numpy(context_N).to(logits_U.device)
    if sampling.temperature == 0:
        tokens = logits_U.argmax(-1)[of]
        return tokens, logits_U.log_softmax(-1)[of, tokens]
    logp_U = (logits_U / sampling.temperature).log_softmax(-1)
    probs = logp_U.exp()
    keep = keep_mask(probs, sampling)
    if keep is not None:
        logp_U = logp_U.masked_fill(~keep, -torch.inf).log_softmax(-1)
        probs = logp_U.exp()
    uniform_N = uniforms(seeds_N, step)
    if probs.device.type == "cpu":
        from turnwise.models.kernels_cpu import draw_kernel_cpu

        tokens = torch.empty(len(of), dtype=torch.long)
        draw_kernel_cpu(probs.numpy(), context_N, uniform_N, tokens.numpy())
        return tokens, logp_U[of, tokens]
    ladder = probs.double().cumsum(-1)[of]
    target = torch.from_numpy(uniform_N).to(ladder.device) * ladder[:, -1]
    tokens = torch.searchsorted(ladder, target[:, None]).squeeze(1).clamp_(max=ladder.shape[1] - 1)
    return tokens, logp_U[of, tokens]


# -- attention ---------------------------------------------------------------------------------------------------------


FEW = 2  # if the trunk has at least FEW times as many rows as are in use, it is replaced by a copy of the used rows
NARROW = 4  # up to this number of twigs per row, ``engines.decode_kernel`` is faster than matrix products
COLUMNS = 32  # greatest number of twigs per row in one product; each product reads the longest prefix of its twigs


@dataclass(slots=True)
class DecodingTrunk:
    """The shared prefixes of a decoding batch, as R rows of keys and values."""

    keys: list[Tensor]  # per layer (R, H_kv, L, D)
    values: list[Tensor]
    row_N: Tensor  # for each sample, the index of its row among the R rows

    @classmethod
    def of(cls, store: CacheStore, row_N: Tensor, length: int) -> DecodingTrunk:
        """Returns the trunk for samples of the rows ``row_N`` in ``store``, with the first ``length`` tokens of each row.

        If the rows lie close together (see ``CLOSE``), the trunk is a view of the whole range of rows, because copying
        the wanted rows costs more than reading the rows between them.
        """
        rows_R, place_N = torch.unique(row_N, return_inverse=True)
        low, high = int(rows_R[0]), int(rows_R[-1]) + 1
        if high - low <= CLOSE * len(rows_R):
            keys, values = ([slab[low:high, :, :length] for slab in slabs] for slabs in (store.keys, store.values))
            return cls(keys, values, row_N - low)
        return replace(cls(store.keys, store.values, row_N).only(rows_R, length), row_N=place_N)

    def only(self, rows_R: Tensor, length: int) -> DecodingTrunk:
        slabs = (self.keys, self.values)
        keys, values = ([layer[:, :, :length].index_select(0, rows_R) for layer in layers] for layers in slabs)
        return DecodingTrunk(keys, values, torch.arange(len(rows_R), device=rows_R.device))


class _Columns(NamedTuple):
    """A group of twigs whose attention over the trunk is computed together: from each row of the trunk, the twigs with
    numbers ``start`` to ``stop - 1`` within that row. None of them attends to more than ``length`` tokens of the row.
    """

    start: int
    stop: int
    length: int
    members: Tensor | None  # (n,): indices of the twigs of this group; None: all twigs, in their order
    row: Tensor  # (n,): index of the row of each twig in the trunk
    column: Tensor  # (n,): number of each twig within its row, counted from ``start``
    bias: Tensor  # (R, 1, columns * G, length), added to the attention scores; G: query heads per key-value head
    seen: Tensor  # (R, columns * G): number of the row's tokens that each query attends to


class DecodeAttention:
    """An attention plan for decoding N twigs (branches of sampled tokens that continue the trunk's rows).

    Each twig attends to the first ``seen_N`` tokens of its trunk row and to all of its own tokens. Attention over the
    trunk and attention over the twig are merged by their log-sum-exps, so the result is exact.

    Args:
        row_N: for each twig, the index of its row in the trunk; the twigs must be sorted by this index.
        seen_N: for each twig, the number of tokens of its row that it attends to.
        max_tokens: greatest number of tokens that a twig can hold.
        states: recurrent states at the start of the twigs; None without recurrent layers.
    """

    def __init__(
        self, trunk: DecodingTrunk, row_N: Tensor, seen_N: Tensor, max_tokens: int, states: States | None = None
    ) -> None:
        self.trunk = trunk
        self.states, self.flow = states, None if states is None else steps(states, row_N.device)
        N = len(row_N)
        self.twig_keys, self.twig_values = (
            [like.new_empty(N, like.shape[1], max_tokens, like.shape[3]) for like in trunk.keys] for _ in range(2)
        )
        self.length = 0  # number of tokens in every twig; all twigs have the same length
        self._place(row_N, seen_N)

    def _place(self, row_N: Tensor, seen_N: Tensor) -> None:
        self.row, self.seen = row_N, seen_N
        R = len(self.trunk.keys[0])
        counts_R = torch.bincount(row_N, minlength=R)
        first_R = counts_R.cumsum(0) - counts_R
        self.column = torch.arange(len(row_N), device=row_N.device) - first_R[row_N]  # number of a twig within its row
        self.width = max(1, int(counts_R.max())) if len(row_N) else 1
        self.alone = len(row_N) == R and self.width == 1  # every row has exactly one twig
        self._streamed: Any = None  # decode_kernel.StreamedDecode, if it is faster than matrix products
        like = self.trunk.keys[0]
        if self.width <= NARROW and like.device.type == "cpu" and like.dtype == torch.float32:
            from turnwise.engines.decode_kernel import StreamedDecode

            self._streamed = StreamedDecode(self.trunk.keys, self.trunk.values, row_N, seen_N)
        self._columns: dict[int, list[_Columns]] = {}  # key: number of query heads per key-value head
        self._windows: dict[tuple[int, int, int], list[Tensor]] = {}  # by query heads per key-value head, window, step

    def _parts(self, group: int) -> list[_Columns]:
        if group not in self._columns:
            columns = self._columns[group] = []
            for start in range(0, self.width, COLUMNS):
                stop = min(start + COLUMNS, self.width)
                members = ((self.column >= start) & (self.column < stop)).nonzero()[:, 0]
                row, column, seen_n = self.row[members], self.column[members] - start, self.seen[members]
                length = int(seen_n.max())
                R, like = len(self.trunk.keys[0]), self.trunk.keys[0]
                seen_RW = torch.ones(R, stop - start, dtype=torch.long, device=like.device)  # each query needs a token
                seen_RW[row, column] = seen_n
                bias = torch.zeros(R, stop - start, length, dtype=like.dtype, device=like.device)
                bias.masked_fill_(torch.arange(length, device=like.device) >= seen_RW[..., None], -torch.inf)
                bias = bias[:, :, None].expand(-1, -1, group, -1).reshape(R, 1, -1, length)
                seen_RQ = seen_RW.repeat_interleave(group, 1)
                some = members if len(members) < len(self.row) else None
                columns.append(_Columns(start, stop, length, some, row, column, bias, seen_RQ))
        return self._columns[group]

    def _near(self, group: int, window: int) -> list[Tensor]:
        """The attention bias of each group of twigs, for a sliding window."""
        key = (group, window, self.length)
        if key not in self._windows:
            self._windows = {old: found for old, found in self._windows.items() if old[2] == self.length}
            self._windows[key] = [
                part.bias.masked_fill(
                    torch.arange(part.length, device=part.bias.device) <= part.seen[:, None, :, None] + far, HIDDEN
                )
                for far in (self.length - window,)
                for part in self._parts(group)
            ]
        return self._windows[key]

    def kept(self, twigs: Tensor) -> list[Kept]:
        """What these twigs have computed so far."""
        keys, values = (
            [layer[:, :, : self.length].index_select(0, twigs) for layer in layers]
            for layers in (self.twig_keys, self.twig_values)
        )
        states: list[States | None] = [None] * len(twigs)
        if self.states is not None:
            states = [pick(self.states, twig) for twig in twigs.split(1)]
        return [Kept(keys, values, place, self.length, states[place]) for place in range(len(twigs))]

    def grow(self) -> None:
        """Increments the length of all twigs after a forward pass has added one token to each."""
        self.length += 1
        if self.flow is not None:
            self.states = self.flow.last

    def branch(self, parent: Tensor) -> None:
        """Replaces the twigs: new twig i is a copy of the old twig ``parent[i]``. Other old twigs are dropped."""
        if self.states is not None:
            self.states = pick(self.states, parent)
            self.flow = steps(self.states, parent.device)
        if torch.equal(parent, torch.arange(len(self.row), device=parent.device)):
            return
        self.twig_keys = [self._of(k, parent) for k in self.twig_keys]
        self.twig_values = [self._of(v, parent) for v in self.twig_values]
        row_N, seen_N = self.row[parent], self.seen[parent]
        rows_R, place_N = torch.unique(row_N, return_inverse=True)
        if FEW * len(rows_R) <= len(self.trunk.keys[0]):
            self.trunk, row_N = self.trunk.only(rows_R, int(seen_N.max())), place_N
        self._place(row_N, seen_N)

    def _of(self, twigs: Tensor, parent: Tensor) -> Tensor:
        new = twigs.new_empty(len(parent), *twigs.shape[1:])
        new[:, :, : self.length] = twigs[:, :, : self.length].index_select(0, parent)
        return new

    @property
    def attend_rows(self) -> Callable[[int, Tensor, float], Tensor] | None:
        """Can be called in place of :meth:`attend` if it is not None."""
        # An attribute would make the plan refer to itself, and lanes, which do not collect such circles, would keep it.
        return None if self._streamed is None else self._by_rows

    def _by_rows(self, layer: int, new: Tensor, scaling: float) -> Tensor:
        """As :meth:`attend`, from the queries, keys and values of each token in a row of ``new`` to outputs (N, H D)."""
        out: Tensor = self._streamed.attend(
            layer, new, scaling, (self.twig_keys[layer], self.twig_values[layer]), self.length
        )
        return out

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        N, H, _, D = query.shape
        H_kv = key.shape[1]
        if self.attend_rows is not None and rules == PLAIN:
            new = torch.cat([query, key, value], dim=1).view(N, -1)
            return self.attend_rows(layer, new, scaling).view(N, H, 1, D)
        G = H // H_kv
        q = query[:, :, 0].reshape(N, H_kv, G, D) * scaling
        self.twig_keys[layer][:, :, self.length] = key[:, :, 0]
        self.twig_values[layer][:, :, self.length] = value[:, :, 0]
        first = 0 if rules.window is None else max(0, self.length + 1 - rules.window)
        v_own = self.twig_values[layer][:, :, first : self.length + 1]
        own = q @ self.twig_keys[layer][:, :, first : self.length + 1].transpose(2, 3)  # (N, H_kv, G, t)
        own = rules.capped(own)
        keys, values, parts = self.trunk.keys[layer], self.trunk.values[layer], self._parts(G)
        biases = [part.bias for part in parts] if rules.window is None else self._near(G, rules.window)
        sinks = None if rules.sinks is None else rules.sinks.to(own.dtype).view(H_kv, G)
        if self.alone:
            (part,) = parts
            scores = rules.capped(q @ keys[:, :, : part.length].transpose(2, 3)) + biases[0]
            seen_N = [scores, own] if sinks is None else [scores, own, sinks[None, ..., None].expand(N, -1, -1, 1)]
            weights = torch.cat(seen_N, dim=-1).softmax(-1)
            out = weights[..., : part.length] @ values[:, :, : part.length]
            shown = slice(part.length, part.length + own.shape[-1])
            return out.add_(weights[..., shown] @ v_own).view(N, H, 1, D)

        # float32, because log-sum-exps in bfloat16 would have errors of several percent
        own = own.to(torch.promote_types(own.dtype, torch.float32))
        mass = own.logsumexp(-1)  # (N, H_kv, G)
        out = (own - mass[..., None]).exp_().to(v_own.dtype) @ v_own
        if sinks is not None:
            merge(out, mass, torch.zeros_like(out), sinks.expand_as(mass))
        for part, bias in zip(parts, biases, strict=True):
            columns = part.stop - part.start
            wide = q.new_zeros(len(keys), columns, H_kv, G, D)
            wide[part.row, part.column] = q if part.members is None else q[part.members]
            wide = wide.transpose(1, 2).reshape(len(keys), H_kv, columns * G, D)
            found, lse = _trunk(wide, keys[:, :, : part.length], values[:, :, : part.length], bias, rules)
            found, lse = (
                x.view(len(keys), H_kv, columns, G, -1).transpose(1, 2)[part.row, part.column]
                for x in (found, lse[..., None])
            )
            if part.members is None:
                merge(out, mass, found, lse[..., 0])
                continue
            mine, known = out[part.members], mass[part.members]
            merge(mine, known, found, lse[..., 0])
            out[part.members] = mine
        return out.reshape(N, H, 1, D)


def _trunk(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """Returns the attention output (R, H_kv, Q, D) of scaled queries, and the scores' log-sum-exps (R, H_kv, Q)."""
    if query.device.type == "cpu" and rules.softcap is None:
        return seen_attention_cpu(query, key, value, 1.0, mask=bias)
    scores = rules.capped(query @ key.transpose(2, 3))
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) + bias
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp_().to(value.dtype) @ value, lse


# -- the loop ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Node:
    """A history in the tree engine: the first ``length`` tokens of a stored row, followed by ``pending`` tokens."""

    row: StoredRow
    length: int
    pending: list[int] = field(default_factory=list)  # last tokens of the history, which are in no row yet
    kept: Kept | None = None  # keys and values of the first pending tokens, computed during decoding
    hidden: Tensor | None = None  # (D,) hidden state of the history's last token, used to sample the next token


def decode(
    forward: Callable[..., Tensor],
    head: Head,
    store: CacheStore,
    states: Sequence[Node],
    sampling: Sampling,
    seeds_N: np.ndarray,
    end_ids: Collection[int],
    on_sample: Told,
) -> list[Sample]:
    """Samples one action for each node (history), one token per step. The nodes are sorted by slot and length, and
    ``end_ids`` are the tokens that end an action.

    As long as several samples of one history have equal tokens, these tokens are computed once, as one branch. The
    suffix _U marks the axis over branches, and _N the axis over samples.
    """
    device, vocabulary = head.weight.device, len(head.weight)
    rows_N = torch.tensor([s.row.slot for s in states], device=device)
    trunk = DecodingTrunk.of(store, rows_N, max(s.length for s in states))
    # each history once, by its first sample, and for each sample the number of its history
    _, first, twig_N = np.unique(
        [(s.row.slot, s.length) for s in states], axis=0, return_index=True, return_inverse=True
    )
    heads, twig_N = first.tolist(), twig_N.ravel()
    length_U = torch.tensor([states[i].length for i in heads], device=device)
    begin = stack_states([states[i].row.marks[states[i].length].states for i in heads]) if store.state_bytes else None
    plan = DecodeAttention(trunk, trunk.row_N[heads], length_U, sampling.max_tokens, begin)
    hidden_U = torch.stack([states[i].hidden for i in heads])  # type: ignore[misc]
    samples = [Sample([], [], truncated=True) for _ in states]
    live = np.arange(len(states))
    for step in range(sampling.max_tokens):
        tokens_N, logps_N = draw_tokens(head(hidden_U), sampling, seeds_N[live], step, twig_N)
        going = np.full(len(live), step + 1 < sampling.max_tokens)
        for place, (i, token, logp) in enumerate(zip(live, tokens_N.tolist(), logps_N.tolist(), strict=True)):
            samples[i].ids.append(token)
            samples[i].logprobs.append(logp)
            if token in end_ids:
                going[place] = samples[i].truncated = False
        ended = live[~going]
        kept = plan.kept(torch.from_numpy(twig_N[~going]).to(device)) if step and len(ended) else [None] * len(ended)
        for i, computed in zip(ended, kept, strict=True):
            states[i].kept = computed
            on_sample(int(i), samples[i])
        if not going.any():
            break
        live, written = live[going], tokens_N.cpu().numpy()[going]
        twigs, twig_N = np.unique(twig_N[going] * vocabulary + written, return_inverse=True)
        parent_U, token_U = (torch.from_numpy(x).to(device) for x in np.divmod(twigs, vocabulary))
        plan.branch(parent_U)
        length_U = length_U[parent_U]
        hidden_U = forward(token_U[:, None], (length_U + step)[:, None], plan)[:, 0]
        plan.grow()
    return samples
