"""Checks that the files of a LoRA adapter are valid and that the adapter was trained on the given base model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from turnwise.files import atomic_write
from turnwise.models.check_weights import (
    ADAPTER_CONFIG,
    FLOATS,
    WeightsError,
    check_finite,
    read_json,
    tensor_names,
    weight_files,
)

ADAPTER = "adapter_model.safetensors"
_BASE = "base.json"  # file in an adapter's folder that records the base model on which the adapter was trained
_REPEATS = 5  # greatest number of repetition operators in a regular expression that peft matches with module names
_RANK, _ALPHA = 2**13, 2**20  # greatest accepted LoRA rank and alpha
_INITS = (None, True, False, "gaussian", "orthogonal")  # initialisations that do not change the base's weights
# Keys of adapter_config.json that may differ from their defaults. Other keys would load code or change the base model.
_ADAPTER_KEYS = """
    alpha_pattern auto_mapping base_model_name_or_path bias ensure_weight_tying exclude_modules fan_in_fan_out
    inference_mode init_lora_weights layers_pattern layers_to_transform lora_alpha lora_bias lora_dropout modules_to_save
    peft_type peft_version r rank_pattern revision target_modules target_parameters task_type trainable_token_indices
    use_dora use_rslora
"""
_SAMPLED = 16  # approximate number of rows that a fingerprint reads of each tensor, and of values of each row


def check_adapter(folder: Path, base: str | Path) -> None:
    """Checks an adapter's configuration and tensors, and that the adapter was trained on the model ``base``.

    Raises:
        WeightsError: the adapter cannot be used, or was trained on another base model.
    """
    about = read_json(folder / ADAPTER_CONFIG)
    if about.get("peft_type") != "LORA":
        raise WeightsError(f"{ADAPTER_CONFIG} has peft_type={about.get('peft_type')!r}, but only LORA can be merged")
    for key in sorted(set(about) - set(_ADAPTER_KEYS.split())):
        if about[key] and (key, about[key]) not in (("megatron_core", "megatron.core"), ("qalora_group_size", 16)):
            raise WeightsError(f"{ADAPTER_CONFIG} sets {key}, which is not supported; train an adapter without it")
    if (start := about.get("init_lora_weights")) not in _INITS:
        raise WeightsError(
            f"{ADAPTER_CONFIG} has init_lora_weights={start!r}, with which loading the adapter changes the base "
            "model's weights; convert the adapter to a plain LoRA with peft's save_pretrained and its argument "
            "path_initial_model_for_weight_conversion"
        )
    for key, pattern, most in (("r", "rank_pattern", _RANK), ("lora_alpha", "alpha_pattern", _ALPHA)):
        given = about.get(pattern) or {}
        if not isinstance(given, Mapping):
            raise WeightsError(f"{ADAPTER_CONFIG} has {pattern}={given!r}, but this value must be an object")
        for name, value in {key: about.get(key), **given}.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                raise WeightsError(
                    f"{ADAPTER_CONFIG} has {name}={value!r}, but this value must be above 0 and at most {most}"
                )
    for pattern in _patterns(about):
        if len(pattern) > 2000 or re.search(r"\)[*+{]", pattern) or len(re.findall(r"[*+{]", pattern)) > _REPEATS:
            raise WeightsError(
                f"{ADAPTER_CONFIG} contains a regular expression that may never finish matching ({pattern[:60]!r})"
            )
    tensor_names(folder / ADAPTER)
    with safe_open(folder / ADAPTER, "pt") as stream:
        for name in stream.keys():  # noqa: SIM118 - the stream is not a mapping
            if (kind := stream.get_slice(name).get_dtype()) not in FLOATS:
                raise WeightsError(f"{name} is of type {kind}, but an adapter's weights must be floating-point numbers")
            check_finite([(name, stream.get_tensor(name))])
    _check_base(folder, base, about.get("base_model_name_or_path"))


def note_base(folder: Path, base: str | Path) -> None:
    """Writes a file into an adapter's folder that records the base model on which the adapter was trained."""
    with atomic_write(folder / _BASE) as part:
        part.write_text(json.dumps({"base": str(base), "spread": fingerprint(weight_files(base))}), encoding="utf-8")


def _check_base(folder: Path, base: str | Path, recorded: Any) -> None:
    noted = read_json(folder / _BASE) if (folder / _BASE).exists() else {}
    if "spread" in noted:
        if noted["spread"] != fingerprint(weight_files(base)):
            raise WeightsError(f"the adapter was trained on other weights, namely those of {noted.get('base')}")
    elif isinstance(recorded, str) and recorded and _base_name(recorded) != _base_name(str(base)):
        raise WeightsError(
            f"the adapter was trained on {recorded}; if this is the same model, correct base_model_name_or_path in its "
            f"{ADAPTER_CONFIG}"
        )


def _base_name(model: str) -> str:
    """Returns a base model's name in lower case, without its owner or folder.

    For a folder in the Hugging Face hub's cache, the result is the repository's name.
    """
    parts = Path(model).parts
    if len(parts) > 2 and parts[-2] == "snapshots":
        return parts[-3].rpartition("--")[2].lower()
    return parts[-1].lower() if parts else ""


def _patterns(about: Mapping[str, Any]) -> list[str]:
    """Returns the strings of an adapter's configuration that peft reads as regular expressions."""
    found = [about.get(key) for key in ("target_modules", "exclude_modules", "layers_pattern", "target_parameters")]
    lists = [value for value in found if isinstance(value, list)]
    texts = [*found, *(text for value in lists for text in value)]
    texts += [*(about.get("rank_pattern") or {}), *(about.get("alpha_pattern") or {})]
    return [text for text in texts if isinstance(text, str)]


def fingerprint(files: Sequence[Path]) -> str:
    """Returns a digest of a model's weights. Models with different weights have different digests in practice.

    The digest is computed from the names and shapes of all tensors in ``files`` and from a few values of each tensor.
    """
    digest = hashlib.sha256()
    found = {name: file for file in files for name in tensor_names(file)}
    for file in sorted(set(found.values())):
        with safe_open(file, "pt") as stream:
            for name in sorted(name for name, place in found.items() if place == file):
                part = stream.get_slice(name)
                shape = part.get_shape()
                digest.update(f"{name} {shape}\n".encode())
                for row in _rows(shape):
                    few = part[(*row, slice(0, _SAMPLED))]
                    digest.update(bytes(few.contiguous().view(torch.uint8).flatten().tolist()))
    return digest.hexdigest()


def _rows(shape: Sequence[int]) -> list[tuple[slice, ...]]:
    """Returns indices of about ``_SAMPLED`` rows that are spread over a tensor of the given shape.

    A single row is not enough, because it may be padding, with equal values in all models.
    """
    if len(shape) < 2:
        return [()] if shape else []
    step = max(1, shape[0] // _SAMPLED)
    return [(slice(i, i + 1), *(slice(0, 1) for _ in shape[1:-1])) for i in range(0, shape[0], step)]
