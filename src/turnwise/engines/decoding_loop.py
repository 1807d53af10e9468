"""Samples actions token by token for nodes whose histories are already prefilled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from turnwise.engines.decode_attention import DecodeAttention, Trunk, distinct
from turnwise.engines.draw_tokens import draw
from turnwise.engines.engine import Sample, Sampling, Told
from turnwise.engines.kv_store import Kept, Store
from turnwise.engines.stored_rows import StoredRow
from turnwise.models.head import Head
from turnwise.models.recurrence import stack


@dataclass(slots=True)
class Node:
    """A history in the tree engine: the first ``length`` tokens of a stored row, followed by ``pending`` tokens."""

    row: StoredRow
    length: int
    pending: list[int] = field(default_factory=list)  # last tokens of the history, which are in no row yet
    kept: Kept | None = None  # keys and values of the first pending tokens, computed during decoding
    hidden: Tensor | None = None  # (D,) hidden state of the history's last token, used to sample the next token


@dataclass(frozen=True, slots=True)
class Decoder:
    """Samples actions for nodes (histories). ``end_ids`` are the tokens that end an action."""

    forward: Callable[..., Tensor]
    head: Head
    store: Store
    recurrent: bool
    end_ids: frozenset[int]

    def __call__(
        self,
        states: Sequence[Node],
        sampling: Sampling,
        seeds_N: np.ndarray,
        steps: int,
        written_N: np.ndarray,
        on_sample: Told | None,
    ) -> list[Sample]:
        """Samples one action for each node, one token per step.

        As long as several samples of one history have equal tokens, these tokens are computed once, as one branch. The
        suffix _U marks the axis over branches, and _N the axis over samples.

        Args:
            seeds_N: one random seed per action.
            steps: greatest number of tokens to sample per action in this call.
            written_N: for each action, the number of tokens that earlier calls have already sampled.
            on_sample: callback for each complete sample; None: no callback.
        """
        left_N = sampling.max_tokens - written_N
        steps = min(steps, int(left_N.max()))
        device, vocabulary = self.head.weight.device, len(self.head.weight)
        rows_N = torch.tensor([s.row.slot for s in states], device=device)
        trunk = Trunk.of(self.store, rows_N, max(s.length for s in states))
        heads, twig_N = distinct([(id(s.row), s.length) for s in states])
        length_U = torch.tensor([states[i].length for i in heads], device=device)
        begin = stack([states[i].row.marks[states[i].length].states for i in heads]) if self.recurrent else None
        plan = DecodeAttention(trunk, trunk.row_N[heads], length_U, steps, begin)
        hidden_U = torch.stack([states[i].hidden for i in heads])  # type: ignore[misc]
        samples = [Sample([], [], truncated=True) for _ in states]
        live = np.arange(len(states))
        for step in range(steps):
            tokens_N, logps_N = draw(self.head(hidden_U), sampling, seeds_N[live], step + written_N[live], twig_N)
            going = np.ones(len(live), dtype=bool)
            for place, (i, token, logp) in enumerate(zip(live, tokens_N.tolist(), logps_N.tolist(), strict=True)):
                samples[i].ids.append(token)
                samples[i].logprobs.append(logp)
                ends = token in self.end_ids
                if ends or step + 1 == left_N[i]:
                    going[place], samples[i].truncated = False, not ends
            last = not going.any() or step + 1 == steps
            ended = live[~going | last]
            if step:
                computed = plan.kept(torch.from_numpy(twig_N[~going | last]).to(device))
            for place in live[going & last]:
                samples[place].truncated = samples[place].whole = False
            for place, i in enumerate(ended):
                states[i].kept = computed[place] if step and not states[i].pending else None
                if on_sample is not None and samples[i].whole:
                    on_sample(int(i), samples[i])
            if last:
                break
            live, written = live[going], tokens_N.cpu().numpy()[going]
            twigs, twig_N = np.unique(twig_N[going] * vocabulary + written, return_inverse=True)
            parent_U, token_U = (torch.from_numpy(x).to(device) for x in np.divmod(twigs, vocabulary))
            plan.branch(parent_U)
            length_U = length_U[parent_U]
            hidden_U = self.forward(token_U[:, None], (length_U + step)[:, None], plan)[:, 0]
            plan.grow()
        return samples
