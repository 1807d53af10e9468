"""Sends the policy of a finished run to the Hugging Face Hub, without secrets and paths of this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars

from turnwise.errors import InputError
from turnwise.json_and_yaml import parse_json
from turnwise.reports.model_card import base_of, model_card
from turnwise.reports.remove_secrets import Cleaner, cleaner
from turnwise.runs.run_folder import read_record
from turnwise.text import said

CARD = "README.md"
PARTS = {"adapter": "adapter_config.json", "model": "config.json"}
"""The policy is in one of these subfolders of the run's folder. Subfolder -> file that it must contain."""
# name of a file -> the key in this file whose value names the base model
_NAMED = {"adapter_config.json": "base_model_name_or_path", "base.json": "base"}
# names of the files from which paths and secrets are removed
_CONFIGS = {*_NAMED, "config.json", "tokenizer_config.json", "generation_config.json"}
_SENT = re.compile(
    r"[\w-]+\.safetensors(\.index\.json)?|chat_template\.jinja|merges\.txt|vocab\.(json|txt)|added_tokens\.json"
    r"|special_tokens_map\.json|tokenizer\.(json|model)|spiece\.model"
)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class Parcel:
    """The files that are sent to the Hub.

    Attributes:
        repository: ``owner/name``.
        files: name in the repository -> path of a file of the run, or the bytes to send if the content is changed.
        card: the text of ``README.md`` in the repository.
        kept: names of files in the run's folder that are not sent, because they are not part of a policy.
    """

    repository: str
    files: Mapping[str, Path | bytes]
    card: str
    kept: tuple[str, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """Name of a file in the repository -> size in bytes."""
        return {name: len(it) if isinstance(it, bytes) else it.stat().st_size for name, it in self.files.items()}


def parcel(folder: Path, repository: str, licence: str | None = None, project: str | None = None) -> Parcel:
    """Returns the files of a finished run that :func:`push` sends. Only the run's folder is read.

    Raises:
        InputError: the name of the repository is invalid, the folder holds no finished run, the run saved no policy, or
            a file is a symbolic link. Links are refused because they could lead to any file of this machine.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise InputError(
            f"{repository}: this is not the name of a repository; write owner/name, such as me/household-pivotrl"
        )
    if not folder.is_dir():
        raise InputError(f"{folder}: this folder does not exist; give a run's folder, such as outputs/pivotrl/seed0")
    part = next((part for part, needed in PARTS.items() if (folder / part / needed).is_file()), None)
    if part is None:
        raise InputError(
            f"{folder}: the folder has neither adapter/ nor model/, so the run is not finished; start the run again to "
            "finish it"
        )
    card = model_card(folder, part, repository, licence, project)
    base, clean = base_of(read_record(folder)).name, cleaner(folder)
    found = sorted(path for path in (folder / part).iterdir() if path.name != CARD)
    known = [path for path in found if path.name in _CONFIGS or _SENT.fullmatch(path.name)]
    for path in (folder / part, *known):
        if path.is_symlink() or (path != folder / part and not path.is_file()):
            raise InputError(f"{path}: this is a link, or not a regular file; replace it with a copy of the file")
    files = {path.name: _content(path, base, clean) for path in known}
    return Parcel(repository, {**files, CARD: card.encode()}, card, tuple(it.name for it in found if it not in known))


def _content(path: Path, base: str, clean: Cleaner) -> Path | bytes:
    """Returns the path of a file, or its cleaned content if it holds secrets or paths of this machine."""
    if path.name not in _CONFIGS:
        return path
    try:
        settings = parse_json(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path}: this is not JSON ({error}); start the run again to write the file") from error
    if not isinstance(settings, dict):
        raise InputError(f"{path}: this is not a JSON object; start the run again to write the file")
    named = _NAMED.get(path.name)
    cleaned = {key: base if key == named else value for key, value in clean.value(settings).items()}
    return path if cleaned == settings else (json.dumps(cleaned, indent=2) + "\n").encode()


def push(parcel: Parcel, token: str, private: bool = True) -> str:
    """Creates the repository if it does not exist, sends all files as one commit, and returns the URL of the commit.

    Raises:
        InputError: the Hub cannot be reached, or refuses the token, the repository or a file.
    """
    api = HfApi(token=token)
    disable_progress_bars()
    try:
        api.create_repo(parcel.repository, private=private, exist_ok=True)
        added = [CommitOperationAdd(name, content) for name, content in parcel.files.items()]
        commit = api.create_commit(parcel.repository, added, commit_message="Policy and model card of a Turnwise run")
    except HfHubHTTPError as error:
        raise InputError(_refused(error, parcel.repository, api.endpoint, token)) from error
    except (HTTPError, OfflineModeIsEnabled) as error:
        raise InputError(
            f"{api.endpoint}: the server cannot be reached ({said(str(error), token)}); check the network "
            "and the variables HF_ENDPOINT and HF_HUB_OFFLINE; --dry-run shows what would be sent"
        ) from error
    # huggingface_hub raises these errors for invalid metadata of the card and for an invalid file
    except (ValueError, RuntimeError) as error:
        raise InputError(f"{parcel.repository}: the Hub refused the files ({said(str(error), token)})") from error
    return str(commit.commit_url)


def _refused(error: HfHubHTTPError, repository: str, endpoint: str, token: str) -> str:
    status = error.response.status_code
    why = said(error.server_message or str(error), token)
    if status in (401, 403):
        return (
            f"{endpoint} refuses the token for {repository} ({status}: {why}); give a token with write access: "
            "`hf auth login`, or HF_TOKEN"
        )
    return f"{endpoint} refuses {repository} ({status}: {why}); choose another name, or try again later"
