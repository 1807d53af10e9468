"""Batched episodes with keys and values kept between turns: quick measurements while the policy is being trained.

Rows have lengths of their own. A chunk is written right-padded at each row's length; what padding wrote lies beyond the
length, is never attended to and is overwritten by the next chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache


class _RaggedCache(Cache):
    """Keys and values (rows, heads, slots, width) a layer, written at each row's own place."""

    def __init__(self, config: Any, rows: int, slots: int) -> None:
        shape = (rows, config.num_key_value_heads, slots, config.head_dim)
        self.kept = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.num_hidden_layers)]
        self.places = torch.zeros(0, dtype=torch.long)  # (rows, chunk), set before each forward
        self.width = 0

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        index = self.places[:, None, :, None].expand_as(keys)
        for buffer, new in zip(self.kept[layer_idx], (keys, values), strict=True):
            buffer.scatter_(2, index, new)
        held_keys, held_values = self.kept[layer_idx]
        return held_keys[:, :, : self.width], held_values[:, :, : self.width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


class Decoder:
    """Feeds token chunks and samples actions for a fixed number of rows."""

    def __init__(self, model: Any, rows: int, slots: int) -> None:
        self.model, self.slots = model, slots
        self.cache = _RaggedCache(model.config, rows, slots)
        self.lengths = torch.zeros(rows, dtype=torch.long)

    @torch.inference_mode()
    def feed(self, chunks: Sequence[Sequence[int]]) -> Tensor:
        """Append each row's tokens (none is allowed) and return the logits after them (rows, vocabulary)."""
        sizes = torch.tensor([len(c) for c in chunks])
        longest = max(1, int(sizes.max()))
        ids = torch.zeros(len(chunks), longest, dtype=torch.long)
        for row, chunk in enumerate(chunks):
            ids[row, : len(chunk)] = torch.tensor(chunk, dtype=torch.long)
        places = (self.lengths[:, None] + torch.arange(longest)).clamp(max=self.slots - 1)
        width = min(self.slots, int(self.lengths.max()) + longest)
        self.cache.places, self.cache.width = places, width
        mask = torch.arange(width)[None, None, None, :] <= places[:, None, :, None]
        hidden = self.model.model(
            input_ids=ids,
            position_ids=places,
            attention_mask={"full_attention": mask},
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        self.lengths = self.lengths + sizes
        last = hidden[torch.arange(len(chunks)), (sizes - 1).clamp(min=0)]
        return self.model.lm_head(last)

    def sample(
        self, logits: Tensor, active: Sequence[bool], temperatures: Tensor, end: int, limit: int, rng: torch.Generator
    ) -> list[list[int]]:
        """One action for each active row, ``end`` included unless ``limit`` cut it; temperature 0 is greedy."""
        written: list[list[int]] = [[] for _ in active]
        going = list(active)
        for _ in range(limit):
            noise = -torch.empty_like(logits).exponential_(generator=rng).log()
            picks = (logits + temperatures[:, None] * noise).argmax(-1).tolist()
            chunks = [[pick] if on else [] for pick, on in zip(picks, going, strict=True)]
            for row, chunk in enumerate(chunks):
                written[row] += chunk
                going[row] = going[row] and chunk[0] != end
            logits = self.feed(chunks)
            if not any(going):
                break
        return written
