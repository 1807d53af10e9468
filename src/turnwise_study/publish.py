"""Sends a run's policy to the Hugging Face Hub, with a model card."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError

from turnwise.errors import InputError
from turnwise.runs.page import summary
from turnwise.runs.result_file import read_result
from turnwise.runs.run_folder import read_record

# what of a policy is sent: no optimiser state, log or configuration of this machine
PATTERNS = [
    "*.safetensors",
    "*.safetensors.index.json",
    "*config.json",
    "*token*.json",
    "*.jinja",
    "vocab.*",
    "merges.txt",
]


def policy_folder(run: Path) -> Path:
    """The folder of the policy that a finished run saved: ``adapter``, or ``model`` if all weights were trained."""
    for name, needed in (("adapter", "adapter_config.json"), ("model", "config.json")):
        if (run / name / needed).is_file():
            return run / name
    raise InputError(f"{run}: there is neither adapter/ nor model/; give the folder of a finished run")


_NAMES = ("_name_or_path", "base_model_name_or_path")  # keys of JSON files whose value may be a relative path


def _public(name: str) -> str:
    """Returns the id of a model as it is, and of a path on this machine the last component."""
    local = name.startswith(("/", ".", "~")) or name.count("/") > 1 or Path(name).exists()
    return Path(name).name if local else name


def card_of(run: Path, licence: str | None = None) -> ModelCard:
    """The model card of a run: its base, and what it measured. The paths of this machine are not in it."""
    result, public = read_result(run), _public(str(read_record(run).get("policy.model") or "unknown"))
    data = ModelCardData(
        license=licence, base_model=public if "/" in public else None, tags=["turnwise", result.method]
    )
    rows = "\n".join(f"| {name} | {value} |" for name, value in {"base": public, **summary(result)}.items())
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n# {result.title}\n\n| | |\n| --- | --- |\n{rows}\n")


def push(run: Path, repository: str, card: ModelCard, token: str, private: bool = True) -> str:
    """Sends the policy and its card as one commit, and returns the commit's URL. Symbolic links are not followed, and
    in the JSON files, a path of this machine is replaced by its last component.
    """
    source, api = policy_folder(run), HfApi(token=token)
    with TemporaryDirectory() as place:
        for path in (path for pattern in PATTERNS for path in source.glob(pattern) if not path.is_symlink()):
            content = path.read_bytes()
            if path.name.endswith("config.json"):
                settings = json.loads(content)
                texts = {key: value for key, value in settings.items() if isinstance(value, str)}
                named = {key: _public(value) for key, value in texts.items() if key in _NAMES or value.startswith("/")}
                content = json.dumps(settings | named, indent=2).encode()
            (Path(place) / path.name).write_bytes(content)
        (Path(place) / "README.md").write_text(str(card), encoding="utf-8")
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            return str(
                api.upload_folder(repo_id=repository, folder_path=place, commit_message="Policy of a Turnwise run")
            )
        except (HfHubHTTPError, OSError, ValueError) as error:
            raise InputError(f"{repository}: {api.endpoint} did not take the files ({error})") from error
