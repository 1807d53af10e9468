"""A disk that fills up: one message, nothing saved is lost, and the same command goes on once there is room."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.integration.warm import Run
from tests.integration.watched import outcome

ROOT = Path(__file__).resolve().parents[2]
MESSAGE = "no space left on this disk; free some space and run the same command again; a run of train.py then resumes"


def _disk() -> Any:
    """The class of tests/faults/disk.py, which the fault campaign uses too."""
    spec = importlib.util.spec_from_file_location("disk", ROOT / "tests" / "faults" / "disk.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Disk


Disk = _disk()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Any]:
    if not all(map(shutil.which, ("unshare", "nsenter", "mount"))):
        pytest.skip("needs util-linux")
    (tmp_path / "disk").mkdir()
    disk = Disk(tmp_path / "disk", kilobytes=4)
    if not disk.mounted:
        disk.close()
        pytest.skip("this system lets no user mount a file system of their own")
    yield disk
    disk.close()


def saved(folder: Path) -> dict[str, bytes]:
    """What a run has finished writing: the next start may add to these files, and takes nothing away."""
    names = ["config.yaml", "evaluation/*.jsonl", "profile/shard-*.parquet", "profile.parquet", "checkpoints/last.ckpt"]
    return {str(path.relative_to(folder)): path.read_bytes() for name in names for path in folder.glob(name)}


@pytest.mark.slow
def test_a_run_outgrows_its_disk_again_and_again(disk: Any, small: Callable[..., list[str]], tmp_path: Path) -> None:
    def train(folder: Path) -> tuple[int | None, str, str]:
        places = [f"paths.out={folder}/run", f"paths.cache={folder}/cache"]
        process = Run([*small("pivotrl"), *places], beside=disk.holder.pid)
        output, errors = outcome(process)
        return process.returncode, output, errors

    whole = tmp_path / "whole"
    status, _, errors = train(whole)
    assert status == 0, errors[-3000:]

    run = disk.path / "run"
    kept: dict[str, bytes] = {}
    stopped: list[str] = []
    # The first is too small for the base policy's evaluation, the second for a checkpoint beside the one before. Then the disk
    # grows by less than the adapter or the page takes.
    for kilobytes in (28, 180, *range(380, 1400, 120), 8000):
        disk.resize(kilobytes)
        status, output, errors = train(disk.at)
        if status == 0:
            break
        assert status == 1, errors[-3000:]
        last = errors.splitlines()[-1]
        assert last.endswith(MESSAGE) and last.startswith(str(disk.at)), errors[-3000:]
        assert "Traceback" not in errors + output
        stopped.append(last.removeprefix(f"{disk.at}/").split(":")[0])
        now = saved(run)
        assert kept.keys() <= now.keys()
        for name in kept.keys() - {"checkpoints/last.ckpt"}:
            assert now[name] == kept[name], name
        if "checkpoints/last.ckpt" in kept:
            assert len(now["checkpoints/last.ckpt"]) >= len(kept["checkpoints/last.ckpt"]) - 64
        assert not list(run.rglob("*.part"))
        kept = now
    assert status == 0, errors[-3000:]
    assert len(set(stopped)) >= 3, stopped

    first, second = (json.loads((folder / "result.json").read_text()) for folder in (whole / "run", run))
    for key in ("in_domain", "ood", "rollout_turns", "rollout_tokens", "config_hash"):
        assert first[key] == second[key], key
    a, b = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (whole / "run", run))
    assert a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)
    assert (run / "report.html").stat().st_size > 10_000
