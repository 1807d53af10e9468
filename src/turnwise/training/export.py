"""Exports the trained policy in Hugging Face format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from turnwise.config.settings import PolicySettings
from turnwise.files import writing
from turnwise.models.policy import plain_copy
from turnwise.training.sharding import Whole, is_sharded


def export(model: Any, tokenizer: Any, folder: Path, policy: PolicySettings, writes: bool) -> None:
    """Writes the trained policy and its tokenizer to a subfolder of the run's folder.

    The subfolder is ``adapter`` if only a LoRA adapter is written, or ``model`` if all weights are written. A run with
    ``policy.start`` writes all weights, because another adapter was merged into the base model before training. If the
    model is sharded, all processes must call this function.

    Args:
        folder: the run's folder.
        writes: whether this process writes the files.
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
