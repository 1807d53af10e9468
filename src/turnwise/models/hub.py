"""Models by their id on the Hugging Face hub: where the files are, found in seconds on a machine without internet."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from turnwise.errors import InputError

_LIMIT = 4.0  # s for the hub to answer at all; its own client tries again for a minute
_WEIGHTS = ("model.safetensors.index.json", "model.safetensors")


def at_hand(model: str, key: str) -> str:
    """``model`` where it is a folder or the hub answers; the folder of its files where this machine has them and no hub answers.

    Args:
        model: a folder, or an id on the hub.
        key: of the configuration, for messages.

    Raises:
        InputError: there is no such folder, the files are not on this machine, and the hub cannot be reached.
    """
    if Path(model).exists():
        return model
    from huggingface_hub import constants, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = [isinstance(try_to_load_from_cache(model, name), str) for name in ("config.json", *_WEIGHTS)]
    except HFValidationError:  # no id either; only a path is written like this
        raise InputError(f"{key}={model}: there is no such folder, and it is no id on the Hugging Face hub") from None
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
        f"`hf download {model}` where there is internet and set HF_HOME to a folder that both machines see, or give a folder"
    )


def _answers(address: str) -> bool:
    """Whether a server answers there at all, by way of the environment's proxies; one try."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_LIMIT):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):  # also a wrong address in HF_ENDPOINT
        return False
