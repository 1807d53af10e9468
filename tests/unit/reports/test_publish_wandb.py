"""What scripts/publish_wandb.py leaves offline, read back from W&B's own file by a reader of the format's description."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record

from turnwise.reports.publish_wandb import KEPT, Published, report_of

ROOT = Path(__file__).parents[3]
HEADER, BLOCK = 7, 32_768  # bytes: of the file; of LevelDB's log format, which W&B's files are


def records(path: Path) -> Iterator[Any]:
    """Every record of an offline run: chunks (checksum, length, kind), one record over several where a block ends."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, parts = HEADER, b""
    while at < len(data):
        room = BLOCK - at % BLOCK
        if room < HEADER:  # too little for the head of a chunk: padding
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or last
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("publish_wandb", ROOT / "scripts" / "publish_wandb.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody who has never logged in here. In the end wandb forgets in this process that it was asked by one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    yield
    wandb.teardown()


@pytest.mark.slow
def test_the_bundle_holds_the_tables_the_rollouts_and_the_files(
    script: Any, make: Any, stranger: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        make.write_run(tmp_path / "outputs" / "pivotrl" / f"seed{seed}", seed=seed, name="pivotrl")
    to = tmp_path / "bundles"
    arguments = [str(tmp_path / "outputs"), "--offline", "--to", str(to), "--project", "agents", "--rollouts", "5"]
    assert script.main(arguments) == 0
    said = capsys.readouterr().out
    (bundle,) = (to / "wandb").glob("offline-run-*")
    assert f"wandb sync {bundle}" in said
    (log,) = bundle.glob("run-*.wandb")
    found = list(records(log))
    (begun,) = {record.run.project for record in found if record.HasField("run")}
    assert begun == "agents"
    logged: dict[str, dict[str, Any]] = {}
    for item in (item for record in found for item in record.history.item):
        if len(item.nested_key) == 2:  # a value of several parts, a key each
            key, part = item.nested_key
            logged.setdefault(key, {})[part] = json.loads(item.value_json)
    kinds = {key.partition("/")[0]: value["_type"] for key, value in logged.items()}
    assert kinds == {"tables": "table-file", "rollouts": "table-file", "report": "html-file"}
    files = {key: bundle / "files" / value["path"] for key, value in logged.items()}
    (name,) = (key for key in files if key.startswith("tables/"))
    table = json.loads(files[name].read_text())
    assert table["columns"][:4] == ["run", "seeds", "before, %", "after, %"]
    assert table["data"][0][:3] == ["pivotrl", "0, 1", "33.9"]
    rollouts = json.loads(files["rollouts"].read_text())
    assert len(rollouts["data"]) == 10
    assert {row[rollouts["columns"].index("iteration")] for row in rollouts["data"]} == {39}
    assert "pivotrl" in files["report"].read_text()
    kept = {
        entry.path
        for record in found
        if record.HasField("request") or record.HasField("artifact")
        for entry in _entries(record)
    }
    assert {f"seed{seed}/{name}" for seed in range(2) for name in KEPT[:3]} | {"comparison.html"} <= kept


def _entries(record: Any) -> list[Any]:
    return [*record.artifact.manifest.contents, *record.request.log_artifact.artifact.manifest.contents]


def test_who_is_not_logged_in_is_told_how(
    script: Any, make: Any, stranger: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make.write_run(tmp_path / "outputs" / "seed0")
    assert script.main([str(tmp_path / "outputs"), "--to", str(tmp_path / "bundles")]) == 2
    said = capsys.readouterr().err
    assert "wandb login" in said and "WANDB_API_KEY" in said and "--offline" in said
    assert not (tmp_path / "bundles").exists()
    assert script.main([str(tmp_path / "nothing"), "--offline"]) == 2
    assert "this folder does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("project", ["a/b", "a\nb", "", "x" * 300])
def test_a_name_that_no_project_can_have_leaves_nothing(
    script: Any, make: Any, stranger: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], project: str
) -> None:
    make.write_run(tmp_path / "outputs" / "seed0")
    arguments = [str(tmp_path / "outputs"), "--offline", "--to", str(tmp_path / "bundles"), "--project", project]
    assert script.main(arguments) == 2
    said = capsys.readouterr().err
    assert "--project" in said and len(said.splitlines()) == 1
    assert not (tmp_path / "bundles").exists()


def test_the_report_shows_the_tables_and_the_rollouts() -> None:
    pytest.importorskip("wandb_workspaces")
    report = report_of(Published(Path(), "team", "agents", "https://example.org"), "Table 4", "| a |\n| --- |\n| 1 |")
    assert (report.entity, report.project, report.title) == ("team", "agents", "Table 4")
    text, _, grid = report.blocks[:3]
    assert text.text == "| a |\n| --- |\n| 1 |"
    assert grid.panels[0].table_name == "rollouts" and grid.runsets[0].project == "agents"
