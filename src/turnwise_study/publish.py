"""Sends a run's policy to the Hugging Face Hub, and tables with the files of runs to Weights & Biases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import HfApi, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError

from turnwise.errors import InputError
from turnwise.runs.result_file import read_result
from turnwise.runs.run_folder import read_record
from turnwise_study.run_page import summary
from turnwise_study.runs import FinishedRuns
from turnwise_study.tables import Table

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
KEPT = ("result.json", "config.yaml", "metrics.jsonl", "report.html")


def policy_folder(run: Path) -> Path:
    """The folder of the policy that a finished run saved: ``adapter``, or ``model`` if all weights were trained."""
    for name, needed in (("adapter", "adapter_config.json"), ("model", "config.json")):
        if (run / name / needed).is_file():
            return run / name
    raise InputError(f"{run}: there is neither adapter/ nor model/; give the folder of a finished run")


def card_of(run: Path, licence: str | None = None) -> ModelCard:
    """The model card of a run: its base, and what it measured. The paths of this machine are not in it."""
    result, base = read_result(run), str(read_record(run).get("policy.model") or "unknown")
    public = base if not Path(base).is_absolute() and base.count("/") < 2 else Path(base).name
    data = ModelCardData(
        license=licence, base_model=public if "/" in public else None, tags=["turnwise", result.method]
    )
    rows = "\n".join(f"| {name} | {value} |" for name, value in {"base": public, **summary(result)}.items())
    title = f"{result.method} on {result.env}, seed {result.seed}"
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n# {title}\n\n| | |\n| --- | --- |\n{rows}\n")


def push(run: Path, repository: str, card: ModelCard, token: str, private: bool = True) -> str:
    """Sends the policy and its card as one commit, and returns the commit's URL. Symbolic links are not followed, and
    the base model's path is replaced by the name that the card gives.
    """
    source, api = policy_folder(run), HfApi(token=token)
    with TemporaryDirectory() as place:
        for path in (path for pattern in PATTERNS for path in source.glob(pattern) if not path.is_symlink()):
            (Path(place) / path.name).write_bytes(path.read_bytes())
        (Path(place) / "README.md").write_text(str(card), encoding="utf-8")
        for path in Path(place).glob("*config.json"):
            settings = {
                k: Path(v).name if isinstance(v, str) and v.startswith("/") else v for k, v in _json(path).items()
            }
            path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            return str(
                api.upload_folder(repo_id=repository, folder_path=place, commit_message="Policy of a Turnwise run")
            )
        except (HfHubHTTPError, OSError, ValueError) as error:
            raise InputError(f"{repository}: {api.endpoint} did not take the files ({error})") from error


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def publish_wandb(
    runs: FinishedRuns, tables: Sequence[Table], project: str, title: str, folder: Path, offline: bool
) -> str:
    """Writes one W&B run with the tables, and an artifact with the files of every run. Returns its URL, or the folder
    of an offline bundle, which ``wandb sync`` uploads.
    """
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    mode: Any = "offline" if offline else "online"
    with wandb.init(project=project, name=title, job_type="report", dir=str(folder), mode=mode) as run:
        for number, table in enumerate(tables):
            columns: list[str | int] = [*table.headers]
            run.log({f"tables/{number}": wandb.Table(columns=columns, data=[list(row) for row in table.rows])})
        artifact = wandb.Artifact("runs", type="runs")
        for at in runs.folders:
            for name in KEPT:
                if (at / name).exists():
                    artifact.add_file(str(at / name), name=f"{at.parent.name}/{at.name}/{name}")
        run.log_artifact(artifact)
        return str(Path(run.dir).parent if offline else run.url)
