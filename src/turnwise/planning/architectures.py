"""Finds the architecture of a model in a local folder, the Hugging Face cache, or planning/architectures.yaml."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, PretrainedConfig

from turnwise.errors import InputError
from turnwise.models.shipped import weights_of

LAYERS = 10_000  # largest number of layers that a planned model may have


@dataclass(frozen=True, slots=True)
class Architecture:
    """The architecture of a model. ``folder`` is the local folder with the model's config.json and perhaps its weights,
    or None. ``gated`` says whether the Hugging Face hub requires an accepted licence.
    """

    model: str
    config: PretrainedConfig
    folder: Path | None
    gated: bool = False


def architecture(model: str) -> Architecture:
    """Returns the architecture of a model. ``model`` is a value of ``policy.model``: the name of a shipped base policy,
    a folder, or a Hugging Face id. No server is contacted.

    Raises:
        InputError: the folder has no ``config.json``, its ``config.json`` is invalid, or the id is neither in the
            Hugging Face cache nor in planning/architectures.yaml.
    """
    folder = Path(weights_of(model))
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"policy.model={model}: this folder contains no config.json; give the folder of a model")
        return Architecture(model, _configuration(folder, model), folder)
    cached = try_to_load_from_cache(model, "config.json") if model.count("/") == 1 else None
    if isinstance(cached, str):
        return Architecture(model, _configuration(Path(cached), model), Path(cached).parent)
    facts = dict(_facts().get(model, {}))
    if not facts:
        raise InputError(
            f"policy.model={model}: there is no such folder, the model is not in the Hugging Face cache, and its shape "
            "is not in src/turnwise/planning/architectures.yaml; download the model's config.json, or add its shape to "
            "that file"
        )
    gated = bool(facts.pop("gated", False))
    return Architecture(model, AutoConfig.for_model(facts.pop("model_type"), **facts), None, gated)


def _configuration(place: Path, model: str) -> PretrainedConfig:
    """Returns the configuration of a model. The number of layers is checked first, because transformers creates a list
    with one entry for each layer.
    """
    try:
        about = json.loads((place / "config.json" if place.is_dir() else place).read_bytes())
    except ValueError as error:
        raise InputError(f"policy.model={model}: {error}") from error
    for part in [about, *(value for value in about.values() if isinstance(value, dict))]:
        layers = part.get("num_hidden_layers", 1)
        if not isinstance(layers, int) or not 0 < layers <= LAYERS:
            raise InputError(
                f"policy.model={model}: its config.json has num_hidden_layers={layers!r}, but num_hidden_layers must "
                f"be from 1 to {LAYERS}"
            )
    return AutoConfig.from_pretrained(place, trust_remote_code=False)


@cache
def _facts() -> dict[str, dict[str, Any]]:
    text = (files("turnwise.planning") / "architectures.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)
