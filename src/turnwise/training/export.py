"""What a run leaves behind of its policy."""

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
    """Write ``adapter``, or ``model`` with all weights, and the tokenizer beside it. All processes that hold a shard must ask.

    An adapter on merged weights is of no use to who has but the model, so a run with ``policy.start`` leaves all weights.

    Args:
        model: as it was trained.
        folder: of the run.
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
