"""What a full disk, a failing writer and a kill leave behind."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from turnwise.files import append, atomic_write, no_room
from turnwise.training.distributed import AtomicCheckpointIO

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def limited(program: str, size: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code that may write no file longer than ``size`` bytes."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_file_is_the_new_one_or_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "below" / "x.txt"
    with atomic_write(path) as part:
        part.write_text("old")
        assert not path.exists()
    with pytest.raises(TypeError), atomic_write(path) as part:
        part.write_text(b"ne")  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


@full
def test_a_full_disk_names_the_file_and_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")
    (tmp_path / f".x.txt.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught, atomic_write(path) as part:
        part.write_text("new")
    assert no_room(caught.value, tmp_path) == (
        f"{path}: no space left on this disk; free some space and run the same command again; a run of train.py then resumes"
    )
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@full
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"epoch": 1}, path)
    (tmp_path / f".last.ckpt.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        AtomicCheckpointIO().save_checkpoint({"epoch": 2}, path)
    assert caught.value.filename == str(path)
    assert torch.load(path) == {"epoch": 1}


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(OSError, match=str(pipe)), atomic_write(pipe) as part:
        part.write_text("x")
    assert pipe.is_fifo()


def test_lines_are_added_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append(path, "one\n")
    append(path, "two\n")
    program = (
        "import sys; from pathlib import Path; from turnwise.files import append; append(Path(sys.argv[1]), 'three\\n')"
    )
    failed = limited(program, 11, str(path))  # room for "thr"
    assert f"File too large: '{path}'" in failed.stderr
    assert path.read_text() == "one\ntwo\n"
