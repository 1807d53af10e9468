"""Checks the files and weights of a model when the model is loaded."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.utils import cached_file

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
_FILE = re.compile(r"[\w-][\w.-]*\.safetensors")  # valid file names; they cannot point outside the model's folder
_NAME = re.compile(r"[\x21-\x7e]{1,500}")  # valid tensor names: printable ASCII, because messages contain them
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_SCALES = {  # regular expression for a key in config.json -> range of the key's valid numbers
    r"(^|_)eps(ilon)?$": (1e-20, 0.1),
    r"rope_theta$": (1.0, 1e15),
    r"^factor$": (1e-3, 1e6),
    r"dropout$|_pdrop$": (0.0, 0.999),
    r"max_position_embeddings$": (1, 1e12),
}
LARGEST = 1e8  # greatest accepted absolute value of a weight
FLOATS = ("F64", "F32", "F16", "BF16")  # data types of weights that are not quantised, as safetensors names them


class WeightsError(ValueError):
    """Raised if a model's files or weights fail a check. The message names the file or tensor."""


def weight_files(model: str | Path) -> list[Path]:
    """Returns the files that contain a model's weights, after checking these files and the model's configuration.

    All of them must be safetensors files in the model's own folder. If ``model`` is an id on the Hugging Face hub, the
    files are downloaded.

    Raises:
        WeightsError: the index names other files, the configuration does not match the files, or a file is damaged.
        OSError: there is no model ``model``.
    """
    _check_folder(Path(model))
    config = found(model, "config.json")
    about = read_json(config) if config is not None else {}
    if about.get("transformers_weights"):
        raise WeightsError("config.json names its own file of weights (transformers_weights), which is not supported")
    if found(model, ADAPTER_CONFIG) is not None:
        raise WeightsError(
            f"{ADAPTER_CONFIG} was found: give the adapter as policy.start and its base model as policy.model"
        )
    names, named = [WHOLE], dict[str, str]()
    if found(model, WHOLE) is None and (index := found(model, INDEX)) is not None:
        places = read_json(index).get("weight_map")
        if not isinstance(places, Mapping) or not places:
            raise WeightsError(f"{INDEX} has no weight_map")
        named = {str(name): str(place) for name, place in places.items()}
        names = sorted(set(named.values()))
        if strange := [name for name in names if not _FILE.fullmatch(name)]:
            raise WeightsError(
                f"{INDEX} names {strange[0]!r}, but only safetensors files in the model's own folder are read"
            )
    files = []
    for name in names:
        if (file := found(model, name)) is None:
            raise WeightsError(f"{name} is missing; other formats than safetensors are not read")
        files.append(file)
    count = _check_places(files, named)
    for part in [about, *(value for value in about.values() if isinstance(value, Mapping))]:
        for key in _LAYERS:
            if isinstance(part.get(key), int | float) and not 0 < part[key] <= count:
                raise WeightsError(f"config.json has {key}={part[key]}, but the files contain only {count} tensors")
    _check_scales(about)
    if (quantised := about.get("quantization_config")) is None:
        _check_types(files)
    elif not isinstance(quantised, Mapping) or quantised.get("quant_method") not in AUTO_QUANTIZER_MAPPING:
        raise WeightsError("config.json has a quantization_config whose quant_method is unknown")
    return files


def tensor_names(file: Path) -> list[str]:
    """Returns the names of the tensors in a safetensors file. Only the file's header is read.

    Raises:
        WeightsError: the file is truncated or is not a safetensors file.
    """
    try:
        with safe_open(file, "pt") as stream:
            names = list(stream.keys())
    except Exception as error:  # safetensors raises its own exception type and OSError
        raise WeightsError(f"{file.name} is damaged or cut off ({error}); copy it again") from error
    if strange := [name for name in names if not _NAME.fullmatch(name)]:
        raise WeightsError(f"{file.name} contains a tensor with an invalid name ({strange[0][:60]!r})")
    return names


def _check_scales(about: Mapping[str, Any], where: str = "config.json") -> None:
    """Checks that numbers in a model's configuration that affect all activations are in plausible ranges.

    Examples are the epsilon of norms, rotary scaling factors and dropout probabilities.
    """
    for key, value in about.items():
        if isinstance(value, Mapping):
            _check_scales(value, f"{where}, {key}")
            low, high = value.get("low_freq_factor"), value.get("high_freq_factor")
            if isinstance(low, int | float) and isinstance(high, int | float) and not 0 < low < high:
                raise WeightsError(
                    f"{where}, {key} has low_freq_factor={low!r} and high_freq_factor={high!r}, but both must be above "
                    "0, and the first must be below the second"
                )
        for ends, (low, high) in _SCALES.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if re.search(ends, key) and value is not None and not (number and low <= value <= high):
                raise WeightsError(f"{where} has {key}={value!r}, but this must be a number from {low:g} to {high:g}")


def _check_types(files: Sequence[Path]) -> None:
    """Checks that all weights are floating-point numbers, for a model whose configuration names no quantisation."""
    for file in files:
        with safe_open(file, "pt") as stream:
            for name in stream.keys():  # noqa: SIM118 - the stream is not a mapping
                if name.endswith(".weight") and (kind := stream.get_slice(name).get_dtype()) not in FLOATS:
                    raise WeightsError(
                        f"{name} in {file.name} is of type {kind}, but config.json names no quantisation"
                    )


def _check_folder(folder: Path) -> None:
    """Checks that a model's folder contains only regular files and folders.

    A broken link, for example, would be ignored silently when the model is loaded.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.is_file() and not path.is_dir():
            raise WeightsError(f"{path.name} in the model's folder is not a regular file; copy the model again")


def _check_places(files: Sequence[Path], named: Mapping[str, str]) -> int:
    """Checks that each tensor is only in the file that the index names for it. Returns the number of tensors."""
    places: dict[str, str] = {}
    for file in files:
        for name in tensor_names(file):
            if name in places:
                raise WeightsError(f"{name} is in {places[name]} and in {file.name}; remove the wrong one")
            if named.get(name, file.name) != file.name:
                raise WeightsError(f"according to {INDEX}, {name} is in {named[name]}, but it is in {file.name}")
            places[name] = file.name
    return len(places)


def check_tied(files: Sequence[Path], config: Any) -> None:
    """Checks that the output head in the files equals the embeddings if the configuration ties the two.

    transformers ignores a tied head in the files. So a head with other values would be lost silently.

    Raises:
        WeightsError: the files contain a tied head that differs from the embeddings.
    """
    if not getattr(config, "tie_word_embeddings", False):
        return
    found = {name: file for file in files for name in tensor_names(file)}
    heads = [name for name in found if name.endswith("lm_head.weight")]
    embeddings = [
        name for name in found if name.endswith(("embed_tokens.weight", "wte.weight", "word_embeddings.weight"))
    ]
    if len(heads) != 1 or len(embeddings) != 1:
        return
    head, embedding = (_tensor(found[name], name) for name in (heads[0], embeddings[0]))
    if head.shape != embedding.shape or not torch.equal(head, embedding):
        raise WeightsError(
            f"config.json ties the head to the embeddings (tie_word_embeddings), but {heads[0]} differs "
            f"from {embeddings[0]}"
        )


def _tensor(file: Path, name: str) -> torch.Tensor:
    with safe_open(file, "pt") as stream:
        tensor: torch.Tensor = stream.get_tensor(name)
        return tensor


def check_loaded(info: Mapping[str, Any], layers: int) -> None:
    """Checks ``info``, the missing and unexpected tensors that ``from_pretrained`` reports.

    A missing tensor is an error, because transformers fills it with random values. An unexpected tensor in one of the
    model's ``layers`` layers means that the files belong to another architecture. Other unexpected tensors are ignored.

    Raises:
        WeightsError: a tensor is missing from the files, or the files belong to another model.
    """
    for name in sorted(info["unexpected_keys"]):
        found = re.search(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.", name)
        if found and int(found[1][:9]) < layers and not name.endswith(("inv_freq", "masked_bias", "attn.bias")):
            raise WeightsError(
                f"the files contain the tensor {name}, which the architecture in config.json does not have"
            )
    if missing := sorted(info["missing_keys"]):
        raise WeightsError(f"{missing[0]} and {len(missing) - 1} more tensors are missing from the model's files")


def check_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Checks that weights contain no NaN, infinity or absolute value above ``LARGEST``.

    Raises:
        WeightsError: a tensor contains one of these values; the message names the first of these tensors.
    """
    for name, value in tensors:
        if not value.is_floating_point() or value.is_meta or not value.numel():
            continue
        known = value if value.element_size() > 1 else value.to(torch.float32)  # aminmax refuses one-byte types
        low, high = torch.aminmax(known.detach())
        if not math.isfinite(low) or not math.isfinite(high):
            raise WeightsError(f"{name} contains values that are not finite")
        if max(-float(low), float(high)) > LARGEST:
            raise WeightsError(f"{name} contains values above {LARGEST:g}, which are too large for trained weights")


def check_embeddings(weight: torch.Tensor) -> None:
    """Checks that the first 64 rows of the embeddings do not all contain one value, as weights without training do.

    Raises:
        WeightsError: all values in these rows are equal.
    """
    if not weight.is_meta and weight.numel() > 1 and bool((weight[:64] == weight[0, 0]).all()):
        raise WeightsError("all values of the embeddings are equal, so the weights were never initialised")


def check_norms(modules: Iterable[tuple[str, torch.nn.Module]]) -> None:
    """Checks that no normalisation layer returns the same output for every input because its weight is all zeros.

    Zero weights are accepted in layers that scale by 1 + weight, such as Gemma's.

    Raises:
        WeightsError: a layer fails the check; the message names the first of these layers.
    """
    for name, module in modules:
        if re.search(r"Norm(Gated)?$", type(module).__name__) and _answers_one_thing(module):
            raise WeightsError(f"{name}.weight is all zeros, so this norm returns the same output for every input")


def _answers_one_thing(norm: torch.nn.Module) -> bool:
    weight = getattr(norm, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.is_meta or not weight.numel() or weight.any():
        return False
    read = torch.linspace(-1, 1, weight.numel(), dtype=weight.dtype, device=weight.device).view_as(weight)
    both = torch.stack([read, -read])
    try:
        with torch.no_grad():
            first, second = norm(both, both) if type(norm).__name__.endswith("Gated") else norm(both)
    except (RuntimeError, ValueError):  # the layer needs inputs of another shape, as in xLSTM
        return False
    return torch.equal(first, second)


def found(model: str | Path, name: str) -> Path | None:
    """Returns the path of a model's file, in the model's folder or from the hub, or None if it is missing."""
    if Path(model).is_dir():
        path = Path(model) / name
        return path if path.is_file() else None
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_gated_repo": False}
    path = cached_file(str(model), name, **quiet)
    return None if path is None else Path(path)


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Raises:
        WeightsError: the file cannot be read or does not contain a JSON object.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a regular file")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path.name} cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{path.name} is not a JSON object")
    return found
