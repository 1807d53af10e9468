"""Exports the trained policy in Hugging Face format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnwise.config.settings import PolicySettings
from turnwise.files import writing
from turnwise.models.adapters import note_base
from turnwise.models.policy import plain_copy
from turnwise.models.shipped import weights_of
from turnwise.training.sharding import Whole, is_sharded


def export(model: Any, tokenizer: Any, folder: Path, policy: PolicySettings, writes: bool) -> None:
    """Writes ``adapter``, or ``model`` with all weights, with the tokenizer.

    All processes that hold a shard must call it. A run with ``policy.start`` writes all weights, because its adapter
    fits only the merged weights, not the published model.

    Args:
        model: the trained model.
        tokenizer: the policy's tokenizer.
        folder: of the run.
        policy: the policy's settings.
        writes: whether this process writes.
    """
    if policy.start:
        left = plain_copy(model)
    else:
        left = Whole(model) if is_sharded(model) else model
    if not writes:
        return
    target = folder / ("adapter" if policy.lora.r and not policy.start else "model")
    with writing(target):
        left.save_pretrained(target, safe_serialization=True)
        tokenizer.save_pretrained(target)
        if target.name == "adapter":
            note_base(target, weights_of(policy.model))
