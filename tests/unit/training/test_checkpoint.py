"""A checkpoint that was damaged after it was written is found out, and the one before takes its place."""

from __future__ import annotations

import random
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from turnwise.errors import InputError
from turnwise.files import no_room
from turnwise.training.checkpoint import WholeCheckpointIO, damage, newest, seal
from turnwise.training.sharding import save_parts


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


def parts(folder: Path, step: int) -> Path:
    """A checkpoint in parts, as three processes leave it."""
    folder.mkdir(parents=True)
    for rank in range(3):
        (folder / f"__{rank}_0.distcp").write_bytes(random.Random(rank + step).randbytes(500))
    (folder / ".metadata").write_bytes(b"where what is")
    (folder / "rest.pt").write_bytes(b"step %d" % step)
    for rank in range(3):
        seal(folder, rank, 3)
    return folder


def test_any_part_that_is_not_as_it_was_is_found(tmp_path: Path) -> None:
    folder = parts(tmp_path / "last.ckpt", 1)
    assert damage(folder) is None
    assert len({line for file in folder.glob("*.sha256") for line in file.read_text().splitlines()}) == 5
    for file in sorted(folder.iterdir()):
        good = file.read_bytes()
        for harm in (lambda f: flip(f, 0), lambda f: flip(f, -2), Path.unlink, lambda f: f.write_bytes(b"")):
            harm(file)
            assert damage(folder), file.name
            file.write_bytes(good)
    assert damage(folder) is None
    (folder / "__3_0.distcp").write_bytes(b"")
    assert damage(folder) == "it contains other files than those that were written"


def test_the_parts_of_before_are_used(tmp_path: Path) -> None:
    said: list[str] = []
    parts(tmp_path / "before.ckpt", 1)
    for _ in range(2):  # the second one finds a damaged folder there already
        flip(parts(tmp_path / "last.ckpt", 2) / "__1_0.distcp", 3)
        found = newest(tmp_path, said.append)
        assert found is not None and (found / "rest.pt").read_bytes() == b"step 1"
        assert (tmp_path / "damaged.ckpt" / "rest.pt").exists() and not (tmp_path / "last.ckpt").exists()
    assert len(said) == 2 and "the checksum of __1_0.distcp does not match" in said[0]


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


def test_parts_that_a_disk_does_not_take_name_the_file_and_the_reason(tmp_path: Path) -> None:
    """Of a limit on the size of files, as of a full disk, torch says no more than "unexpected pos"."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            save_parts({"weights": torch.zeros(100_000)}, tmp_path / "part", tmp_path / "last.ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert no_room(caught.value, tmp_path) is not None and caught.value.filename == str(tmp_path / "last.ckpt")
    save_parts({"weights": torch.zeros(100_000)}, tmp_path / "part", tmp_path / "last.ckpt")


def test_a_folder_in_a_checkpoints_place_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").mkdir()
    with pytest.raises(InputError, match=r"last\.ckpt is damaged"):
        newest(tmp_path, print)
    (tmp_path / "last.ckpt").rmdir()
    save(tmp_path, 1)
    (tmp_path / "before.ckpt").mkdir()
    save(tmp_path, 2)
    assert step_of(tmp_path / "before.ckpt") == 1
    (tmp_path / "last.ckpt").unlink()
    (tmp_path / "last.ckpt").mkdir()
    assert step_of(newest(tmp_path, print)) == 1
