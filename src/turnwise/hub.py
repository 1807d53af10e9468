"""Finds a model's files, on the Hugging Face hub or in its cache, and checks what their small files say, without torch.
Without internet, this takes only seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turnwise.errors import InputError

_LIMIT = 4.0  # time limit in seconds for the hub's first answer; the hub's own client would retry for a minute
_WEIGHTS = ("model.safetensors.index.json", "model.safetensors")
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
# keys of an adapter's configuration with which it is no plain LoRA; megatron_core names a module to import
_UNLIKE_PLAIN = (
    *("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "target_parameters", "modules_to_save", "bias"),
    "megatron_config",
)


def at_hand(model: str, key: str) -> str:
    """Returns ``model`` itself if it is a folder or if the Hugging Face hub can be reached, and otherwise the model's
    folder in the local cache. ``key`` is the configuration key that contains ``model``, for messages.

    Raises:
        InputError: there is no folder ``model``, the model is not in the local cache, and the hub cannot be reached.
    """
    if Path(model).exists():
        check_model(model, key)
        about = Path(model) / "tokenizer_config.json"
        if key == "policy.model" and Path(model).is_dir():
            if not about.is_file():
                raise InputError(f"{key}={model}: there is no {about.name} in this folder; save the tokenizer there")
            if b'"chat_template"' not in about.read_bytes() and not any(about.parent.glob("chat_template*")):
                remedy = "copy chat_template.jinja of the family's instruction-tuned model into the folder"
                raise InputError(f"{key}={model}: the tokenizer has no chat template; {remedy}")
        return model
    from huggingface_hub import constants, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = [isinstance(try_to_load_from_cache(model, name), str) for name in ("config.json", *_WEIGHTS)]
    except HFValidationError:  # the text is not a valid id, so it can only be a path
        raise InputError(
            f"{key}={model}: there is no such folder, and this text is not a valid id on the Hugging Face hub; give "
            "the path of an existing folder, or an id such as Qwen/Qwen3-4B"
        ) from None
    offline = constants.HF_HUB_OFFLINE
    if not offline and _answers(constants.ENDPOINT):
        return model
    if cached[0] and any(cached[1:]):
        return snapshot_download(model, local_files_only=True)
    why = "HF_HUB_OFFLINE is set" if offline else f"{constants.ENDPOINT} cannot be reached"
    raise InputError(
        f"{key}={model}: there is no such folder, its files are not in {constants.HF_HUB_CACHE}, and {why}; run "
        f"`hf download {model}` on a machine with internet access and set HF_HOME to a folder that both machines can "
        "read, or give a local folder"
    )


def _answers(address: str) -> bool:
    import urllib.error  # imported here because they are slow to import
    import urllib.request

    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_LIMIT):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):  # ValueError: HF_ENDPOINT is not a valid address
        return False


def check_model(model: str | Path, key: str) -> None:
    """Raises an InputError if a folder or file cannot be a model. An id of the hub passes."""
    path, named = Path(model), f"{key}={model}"
    if path.is_file() and path.suffix != ".gguf":
        raise InputError(f"{named}: give the folder that contains this file, with config.json and the tokenizer")
    if str(model).endswith(".gguf") and find_spec("gguf") is None:
        raise InputError(f"{named}: reading a GGUF file needs the package gguf: make gguf")
    if (path / ADAPTER_CONFIG).is_file():  # transformers would load the adapter's base model instead
        raise InputError(f"{named}: this is an adapter; set policy.start to it and {key} to its base model")
    if path.is_dir() and not (path / "config.json").is_file():
        raise InputError(f"{named}: there is no config.json in this folder; {_inside(path)}")
    for file in sorted(path.glob("*.safetensors")):
        check_whole(file, named)


def check_whole(file: Path, named: str) -> None:
    """Raises an InputError if a safetensors file is cut off, is none, or is a link to a file that is not there."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np"):  # reads the header, which must fit the file's size
            pass
    except (SafetensorError, OSError) as error:
        why = f"{file.name} is damaged or cut off ({error}); download it, or copy it here, again"
        raise InputError(f"{named}: {why}") from error


def check_length(config: Mapping[str, Any], length: int, named: str) -> None:
    """Raises an InputError if a model with this ``config.json`` knows fewer than ``length`` positions."""
    most = positions(config)
    if most is not None and length > most:
        raise InputError(
            f"rollout.max_length={length}: {named} knows only {most} positions; set rollout.max_length={most}"
        )


def positions(config: Mapping[str, Any]) -> int | None:
    """The tokens of the longest text that a model was made for. None: unknown, or its rotary frequencies are scaled."""
    about = config.get("text_config") or config
    scaling = about.get("rope_parameters") or about.get("rope_scaling") or {}
    most = about.get("max_position_embeddings")
    return (
        most if isinstance(most, int) and scaling.get("rope_type", scaling.get("type")) in (None, "default") else None
    )


def read_config(model: str) -> dict[str, Any]:
    """The ``config.json`` in a model's folder, or in the cache of the hub; empty if there is none, or it cannot be read."""
    file: Any = Path(model) / "config.json"
    try:
        if model.count("/") == 1 and not Path(model).exists():
            from huggingface_hub import try_to_load_from_cache

            file = try_to_load_from_cache(model, "config.json")
        return dict(json.loads(Path(file).read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def check_adapter(adapter: Path, base: str | Path) -> None:
    """Raises an InputError if the folder ``adapter`` has no plain LoRA with one rank and one alpha, which a later
    adapter could be added to (:func:`turnwise.models.policy.save_adapter`), or one that was trained on another model.
    """
    named = f"policy.start={adapter}"
    if not (adapter / ADAPTER).is_file():  # peft would look for the file on the hub
        if not adapter.exists() and (adapter.parent / "config.yaml").is_file():
            raise InputError(f"{named}: the run in {adapter.parent} has not ended; its command resumes it")
        raise InputError(f"{named}: there is no {ADAPTER}; {_inside(adapter)}")
    check_whole(adapter / ADAPTER, named)
    try:
        about = dict(json.loads((adapter / ADAPTER_CONFIG).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{named}: {ADAPTER_CONFIG} cannot be read ({error}); give another adapter") from error
    unlike = [key for key in _UNLIKE_PLAIN if about.get(key) not in (None, False, "none", {}, [])]
    if about.get("init_lora_weights") not in (None, True, False, "gaussian", "orthogonal"):
        unlike.append("init_lora_weights")  # with which peft changes the base model's weights
    if about.get("peft_type") != "LORA" or unlike:
        key = unlike[0] if unlike else "peft_type"
        raise InputError(
            f"{named}: only plain LoRA adapters can be merged, but {ADAPTER_CONFIG} has {key}={about.get(key)!r}"
        )
    recorded = about.get("base_model_name_or_path")
    if recorded and _base_name(str(recorded)) != _base_name(str(base)):
        raise InputError(
            f"{named}: the adapter was trained on {recorded}, not on {base}; set policy.model={recorded}, or if both are "
            f"one model, correct base_model_name_or_path in {ADAPTER_CONFIG}"
        )


def _inside(folder: Path) -> str:
    """What to set instead of the folder, such as the folder of a run."""
    below = [each for seed in ("", "seed*/") for each in sorted(folder.glob(f"{seed}adapter"))]
    if adapter := next((path for path in below if (path / ADAPTER).is_file()), None):
        return f"set policy.start={adapter}, and policy.model to its base model"
    models = [folder, *folder.glob("model"), *sorted(folder.glob("seed*/model"))]
    if whole := next((path for path in models if (path / "config.json").is_file()), None):
        return f"this is a whole model: set policy.model={whole} and leave out policy.start"
    return "name the folder of a Hugging Face model (policy.model), or the adapter of a finished run (policy.start)"


def _base_name(model: str) -> str:
    parts = Path(model).parts
    if len(parts) > 2 and parts[-2] == "snapshots":
        return parts[-3].rpartition("--")[2].lower()
    return parts[-1].lower() if parts else ""
