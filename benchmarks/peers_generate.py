"""Defines a peer that uses transformers' ``generate``: at every turn, it sends the whole history again.

All live rollouts are in one left-padded batch, keys and values are kept within a call, and finished rollouts leave the
batch. The same player as for Turnwise's engine runs the rollouts, so the environment costs the same. Unlike Turnwise's
engine, the peer returns no log-probs, which saves it some work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from turnwise.engines.engine import Sample, Sampling, Told


def generation_config(sampling: Sampling, end_ids: Sequence[int], pad_id: int) -> GenerationConfig:
    return GenerationConfig(
        do_sample=sampling.temperature > 0,
        temperature=sampling.temperature or 1.0,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p or None,
        max_new_tokens=sampling.max_tokens,
        eos_token_id=list(end_ids),
        pad_token_id=pad_id,
    )


class GenerateEngine:
    """A :class:`turnwise.engines.engine.Engine` on top of ``generate``. A node is a list of token ids."""

    def __init__(self, model: Any, end_ids: Sequence[int], pad_id: int) -> None:
        self.model, self.end_ids, self.pad_id = model, list(end_ids), pad_id
        self.version = 0
        self._histories: dict[int, list[int]] = {}
        self._next = 0

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        self._next += 1
        self._histories[self._next] = list(ids)
        return self._next

    def fork(self, node: int) -> int:
        return self.open(self._histories[node])

    def extend(self, node: int, ids: Sequence[int]) -> None:
        self._histories[node].extend(ids)

    def close(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            del self._histories[node]

    def load_weights(self, model: Any, version: int) -> None:
        self.model, self.version = model, version
        self._histories.clear()

    def report(self) -> dict[str, float]:
        return {}

    def shutdown(self) -> None:
        self._histories.clear()

    @torch.inference_mode()
    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        histories = [self._histories[node] for node in nodes]
        width = max(map(len, histories))
        ids = torch.full((len(nodes), width), self.pad_id)
        mask = torch.zeros_like(ids)
        for i, history in enumerate(histories):
            ids[i, width - len(history) :] = torch.tensor(history)
            mask[i, width - len(history) :] = 1
        device = self.model.device
        torch.manual_seed(seeds[0] % (1 << 63))
        out = self.model.generate(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            generation_config=generation_config(sampling, self.end_ids, self.pad_id),
        )
        samples = []
        for node, row in zip(nodes, out[:, width:].tolist(), strict=True):
            end = next((i + 1 for i, token in enumerate(row) if token in self.end_ids), None)
            written = row[: end or len(row)]
            self._histories[node].extend(written)
            samples.append(Sample(written, [math.nan] * len(written), truncated=end is None))
        for place, sample in enumerate(samples if on_sample else ()):
            on_sample(place, sample)  # type: ignore[misc]
        return samples
