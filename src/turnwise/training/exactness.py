"""Refuses models whose log-probs the packed forward pass does not reproduce exactly (``rollouts.probe``)."""

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
from turnwise.rollouts.probe import Difference, probe, probe_backbone

_CODE = ("models", "engines", "rollouts")  # folders whose code can change the probe's result


def check_policy(model: Any, named: str, cache: Path) -> None:
    """Probes a causal LM, unless the cache says that a model of this configuration is exact.

    Args:
        model: the model.
        named: the key and the value that chose the model, for the message.
        cache: the folder that runs share.

    Raises:
        InputError: the model's log-probs are not reproduced; the message is one line with the place of the difference
            and the remedy.
    """
    _check(model, named, cache, probe)


def check_backbone(model: Any, named: str, cache: Path) -> None:
    """Probes a transformer without a head, as :func:`check_policy` does."""
    _check(model, named, cache, probe_backbone)


def _check(model: Any, named: str, cache: Path, measure: Callable[[Any], Difference | None]) -> None:
    kept = cache / "probe" / f"{_key(model, measure.__name__)}.json"
    if kept.is_file():
        return
    if (found := measure(model)) is not None:
        raise InputError(refusal(model, named, found))
    with atomic_write(kept) as part:
        part.write_text(json.dumps({"model": named, "exact": True}) + "\n", encoding="utf-8")


def refusal(model: Any, named: str, found: Difference) -> str:
    """Returns one line with the architecture, the place of the difference, and the remedy."""
    kind = unwrapped(model).config.model_type
    return (
        f"{named}: the architecture {kind} ({type(unwrapped(model)).__name__}) is not reproduced exactly, and training on "
        f"wrong numbers is refused ({found}). Choose a model of a family that docs/models.md lists as exact"
    )


def _key(model: Any, measured: str) -> str:
    """Returns a digest of what decides the result: configuration, precision, device, adapters, libraries and code."""
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
