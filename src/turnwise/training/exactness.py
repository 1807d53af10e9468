"""Refuses models for which the packed forward pass does not give the model's own log-probs (``rollouts.probe``)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

import turnwise
from turnwise.errors import InputError
from turnwise.files import atomic_write
from turnwise.models.attention import unwrapped
from turnwise.rollouts.probe import Difference, probe

_CODE = ("models", "engines", "rollouts")  # packages whose code can change the result of the probe


def check_exact(model: Any, named: str, cache: Path, measure: Callable[[Any], Difference | None] = probe) -> None:
    """Checks that packed trees give the log-probs of a causal LM's own forward pass, or with ``probe_backbone`` the
    last hidden states of a headless transformer's. The check is skipped if the cache says that a model with equal
    :func:`_key` has passed the check.

    Args:
        named: the configuration key and value that chose the model, for the message.
        cache: the folder of files that runs share.

    Raises:
        InputError: the log-probs or hidden states differ.
    """
    kept = cache / "probe" / f"{_key(model, measure.__name__)}.json"
    if kept.is_file():
        return
    if (found := measure(model)) is not None:
        raise InputError(refusal(model, named, found))
    with atomic_write(kept) as part:
        part.write_text(json.dumps({"model": named, "exact": True}) + "\n", encoding="utf-8")


def refusal(model: Any, named: str, found: Difference) -> str:
    """Returns an error message of one line: the architecture, the part that differs, and the remedy."""
    kind = unwrapped(model).config.model_type
    return (
        f"{named}: the architecture {kind} ({type(unwrapped(model)).__name__}) is not reproduced exactly by the "
        f"packed forward pass of this code, so a run would train on wrong log-probs ({found}). Choose a model of a "
        "family that docs/models.md lists as exact"
    )


def _key(model: Any, measured: str) -> str:
    base = unwrapped(model)
    weight = next(base.parameters())
    about = {
        "measured": measured,
        "class": type(base).__name__,
        "config": base.config.to_diff_dict(),
        "adapters": base is not model,
        "weights": [str(weight.dtype), weight.device.type],
        "versions": [library.__version__ for library in (torch, transformers, peft)],
        "layers": base.config.get_text_config().num_hidden_layers,
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for folder in _CODE:
        for file in sorted((Path(turnwise.__file__).parent / folder).glob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]
