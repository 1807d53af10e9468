"""Progress and loggers."""

from __future__ import annotations

import json
import shutil
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import wandb
from omegaconf import DictConfig
from tests.configuration_files import READ
from tests.unit.reports.conftest import write_run
from wandb.proto.wandb_internal_pb2 import Record

from turnwise.config.schema import compose_config
from turnwise.errors import InputError
from turnwise.runs.result_file import NAME, Status
from turnwise.training.progress import StatusWriter, started

# -- progress ----------------------------------------------------------------------------------------------------------


def status_of(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / NAME).read_text()))


def test_a_run_loses_its_status_at_its_end(tmp_path: Path) -> None:
    with StatusWriter(tmp_path, "python train.py method=sft") as writer:
        assert status_of(tmp_path)["command"] == "python train.py method=sft"
        writer(Status(phase="train", done=1, total=2))
        assert status_of(tmp_path)["phase"] == "train"
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt(), "interrupted"), (ValueError("first\nsecond"), "failed")]
)
def test_what_ended_a_run_is_written_down(tmp_path: Path, error: BaseException, state: str) -> None:
    writer = StatusWriter(tmp_path, "python x.py")
    with suppress(KeyboardInterrupt, ValueError), writer:
        writer(Status(phase="train", done=7, total=9, left=3.0))
        raise error
    found = status_of(tmp_path)
    assert (found["state"], found["done"], found["left"]) == (state, 7, None)
    assert found["why"] == ("first" if state == "failed" else "")


# -- loggers -----------------------------------------------------------------------------------------------------------


CONF = Path(__file__).parents[3] / "conf"


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


@pytest.fixture(autouse=True)
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody who has never logged in here."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb.teardown()  # W&B reads these variables only once, and an earlier test may have used it
    yield
    wandb.teardown()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "seed1", seed=1, states=20)


def config(folder: Path, *overrides: str) -> DictConfig:
    named = ("method=pivotrl", "name=pivotrl/tab4/full", "seed=1", "loss.clip_high=0.28")
    return compose_config([*named, f"paths.out={folder}", *overrides], CONF, read=READ)


def logged(cfg: DictConfig, finished: Path) -> None:
    """A run of two lines that leaves what ``finished`` left."""
    with started(cfg, True, pytest.fail) as loggers:
        shutil.copytree(finished, cfg.paths.out, dirs_exist_ok=True)
        for step in range(2):
            loggers[0].log_metrics({"train/reward_mean": 0.25 + step}, step=step)
    wandb.teardown()  # W&B's process has then written and sent all


def nested(items: Any) -> dict[str, Any]:
    """A record's items as a mapping."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.slow
def test_an_offline_run_holds_the_configuration_the_result_and_the_rollouts(tmp_path: Path, finished: Path) -> None:
    cfg = config(tmp_path / "run")
    logged(cfg, finished)
    (path,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    found = list(records(path))
    run = next(record.run for record in found if record.HasField("run"))
    assert (run.display_name, run.run_group, run.job_type) == (
        "pivotrl/tab4/full/seed1",
        "pivotrl/tab4/full",
        "pivotrl",
    )
    assert {"pivotrl", "tiny", "pivotrl/tab4"} == set(run.tags)
    told = {key: value for record in found for key, value in nested(record.config.update).items()}
    assert told["loss"]["clip_high"] == 0.28 and told["seed"] == 1 and told["paths"]["out"] == str(tmp_path / "run")
    rows = [nested(record.history.item) for record in found if record.HasField("history")]
    assert [row["train/reward_mean"] for row in rows if "train/reward_mean" in row] == [0.25, 1.25]
    (table,) = (tmp_path / "run" / "wandb").glob("offline-run-*/files/media/table/rollouts*.json")
    columns, data = (json.loads(table.read_text())[key] for key in ("columns", "data"))
    assert len(data) == cfg.logger.wandb.rollouts and data[0][columns.index("iteration")] == 39
    summary = {key: value for record in found for key, value in nested(record.summary.update).items()}
    assert any("33.9" in json.dumps(value) for key, value in summary.items() if key.startswith("in_domain"))


def test_the_variable_is_stronger_than_the_configuration(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    logged(config(tmp_path / "run", "logger.wandb.offline=false"), finished)
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(InputError, match="WANDB_API_KEY"), started(config(tmp_path / "other"), True, pytest.fail):
        pass


def test_online_without_a_key_is_refused_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    cfg = config(tmp_path / "run", "logger.wandb.offline=false")
    with pytest.raises(InputError, match="WANDB_API_KEY"), started(cfg, True, pytest.fail):
        pass
    assert time.monotonic() - began < 15
    assert not (tmp_path / "run").exists()
    assert "anonymous" not in "".join(capfd.readouterr()).lower()
