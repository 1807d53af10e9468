"""A checkpoint that was damaged after it was written is found out, and the one before takes its place."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from turnwise.errors import InputError
from turnwise.training.checkpoint import WholeCheckpointIO, damage, newest


def save(folder: Path, step: int) -> Path:
    path = folder / "last.ckpt"
    WholeCheckpointIO().save_checkpoint({"weight": torch.full((40, 3), float(step)), "step": step}, path)
    return path


def step_of(path: Path | None) -> int:
    assert path is not None
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return int(content["step"])


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def test_any_byte_that_is_not_as_it_was_is_found(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    good = path.read_bytes()
    assert damage(path) is None and step_of(path) == 1
    for place in {0, len(good) - 1, *random.Random(0).sample(range(len(good)), 400)}:
        flip(path, place)
        assert damage(path), place
        path.write_bytes(good)
    for length in (0, 1, 63, 64, 65, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        assert damage(path), length
    path.write_bytes(good + b"\0")
    assert damage(path)


def test_the_one_before_is_used_and_stays_the_one_before(tmp_path: Path) -> None:
    said: list[str] = []
    assert newest(tmp_path, said.append) is None
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert step_of(newest(tmp_path, said.append)) == 2 and not said
    flip(tmp_path / "last.ckpt", 200)
    assert step_of(newest(tmp_path, said.append)) == 1
    assert len(said) == 1 and "last.ckpt is damaged" in said[0] and "before.ckpt" in said[0]
    assert (tmp_path / "damaged.ckpt").exists() and not (tmp_path / "last.ckpt").exists()
    # the damaged one does not become the one before
    save(tmp_path, 2)
    assert step_of(tmp_path / "before.ckpt") == 1
    save(tmp_path, 3)
    flip(tmp_path / "before.ckpt", 200)
    assert step_of(newest(tmp_path, said.append)) == 3 and len(said) == 1


def test_one_message_where_none_is_left(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"last.ckpt is damaged .*before.ckpt is damaged .*remove"):
        newest(tmp_path, lambda line: None)


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "last.ckpt").unlink()  # as a kill between the two renames leaves it
    assert step_of(newest(tmp_path, lambda line: None)) == 1
