"""What is sent to the Hub and to Weights & Biases. The Hub's client is called with the folder that would be uploaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from turnwise.errors import InputError
from turnwise_study.comparison import run_table
from turnwise_study.publish import card_of, policy_folder, publish_wandb, push
from turnwise_study.runs import collect


@pytest.fixture
def run(tmp_path: Path, make: Any) -> Path:
    folder = make.write_run(tmp_path / "outputs" / "pivotrl" / "seed0")
    (folder / "config.yaml").write_text("policy: {model: /home/someone/secret/base}\nseed: 0\nmethod: pivotrl\n")
    (folder / "adapter").mkdir()
    named = {"base_model_name_or_path": "/home/someone/secret/base", "r": 16}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(named))
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "adapter" / "optimizer.pt").write_bytes(b"not sent")
    (folder / "adapter" / "stolen_config.json").symlink_to(folder / "config.yaml")
    return folder


def test_the_policy_is_sent_with_a_card_and_without_paths(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, bytes] = {}

    def upload(api: HfApi, *, repo_id: str, folder_path: str, commit_message: str) -> str:
        sent.update({path.name: path.read_bytes() for path in Path(folder_path).iterdir()})
        return f"https://hub/{repo_id}"

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: None)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    card = card_of(run, "apache-2.0")
    assert push(run, "me/policy", card, "token") == "https://hub/me/policy"
    assert set(sent) == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert json.loads(sent["adapter_config.json"]) == {"base_model_name_or_path": "base", "r": 16}
    assert not any(b"someone" in content for content in sent.values())
    assert card.data.license == "apache-2.0" and b"license: apache-2.0" in sent["README.md"]


def test_a_run_without_a_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        policy_folder(tmp_path)


def test_tables_and_files_are_written_offline(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    runs = collect([run])
    tables = [run_table(env, scale, rows) for (env, scale), rows in runs.sections.items()]
    bundle = Path(publish_wandb(runs, tables, "turnwise", "T", tmp_path / "wandb", offline=True))
    assert list(bundle.glob("*.wandb")) and list(bundle.rglob("*.table.json"))
