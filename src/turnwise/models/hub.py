"""Finds a model's files, on the Hugging Face hub or in its cache. Without internet, this takes only seconds."""

from __future__ import annotations

from pathlib import Path

from turnwise.errors import InputError

_LIMIT = 4.0  # time limit in seconds for the hub's first answer; the hub's own client would retry for a minute
_WEIGHTS = ("model.safetensors.index.json", "model.safetensors")


def at_hand(model: str, key: str) -> str:
    """Returns the folder or id from which a model can be loaded.

    This is ``model`` itself if it is a folder or if the Hugging Face hub can be reached. Otherwise it is the model's
    folder in the local cache. ``key`` is the configuration key that contains ``model``; error messages name it.

    Raises:
        InputError: there is no folder ``model``, the model is not in the local cache, and the hub cannot be reached.
    """
    if Path(model).exists():
        return model
    from huggingface_hub import constants, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

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
        try:
            return snapshot_download(model, local_files_only=True)
        except LocalEntryNotFoundError:
            pass
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
