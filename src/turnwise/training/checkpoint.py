"""Writes checkpoints atomically and with checksums. The previous checkpoint is kept, in case the newest is damaged."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from turnwise.errors import InputError
from turnwise.files import atomic_write

LAST, BEFORE, DAMAGED = "last.ckpt", "before.ckpt", "damaged.ckpt"
SUMS = ".sha256"  # suffix of files that contain checksums, in the format of sha256sum
_DIGEST = 64  # number of hex digits of a SHA-256 checksum
_END = 22  # size in bytes of the record that ends a zip archive, without a comment


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file in the checkpoint's folder and then renames the file.

    Lightning's own class writes to the system's temporary folder instead. If this folder is on another file system,
    moving the file copies it, so that a kill or a full disk could replace a good checkpoint by half of a new
    checkpoint.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Replaces the checkpoint at ``path``. The previous checkpoint is kept in the folder as ``before.ckpt``.

        Raises:
            OSError: the checkpoint cannot be written. The previous checkpoint is kept.
        """
        buffer = io.BytesIO()  # torch's own error for a full disk does not name the cause
        torch.save(checkpoint, buffer)
        _keep(Path(path))  # before writing, so that the disk needs space for two checkpoints instead of three
        with atomic_write(Path(path)) as part:
            part.write_bytes(sealed(buffer))


def newest(folder: Path, log: Callable[[str], None]) -> Path | None:
    """Returns the newest undamaged checkpoint in a run's ``checkpoints`` folder, or None if there is no checkpoint.

    If ``last.ckpt`` is damaged and ``before.ckpt`` is not, ``last.ckpt`` is renamed to ``damaged.ckpt``, and ``log`` is
    called with one line. Without the new name, the next save would keep the damaged checkpoint as ``before.ckpt``.

    Raises:
        InputError: all checkpoints are damaged.
    """
    bad: list[str] = []
    for path in (folder / LAST, folder / BEFORE):
        if not path.exists():
            continue
        why = damage(path)
        if why is None:
            if bad:
                shutil.rmtree(folder / DAMAGED, ignore_errors=True)  # because a folder cannot replace another one
                (folder / LAST).replace(folder / DAMAGED)
                log(
                    f"{bad[0]}; this file was renamed to {DAMAGED}, and the run resumes from the previous checkpoint, {path}"
                )
            return path
        bad.append(f"{path} is damaged ({why})")
    if bad:
        raise InputError(
            f"{'; '.join(bad)}; put back a copy, or remove {folder} to train again from the start, with the same result"
        )
    return None


def damage(path: Path) -> str | None:
    """Returns None if the checksums of a checkpoint match, else a description of the damage."""
    if path.is_dir():
        return _damaged_part(path)
    hashed, left = hashlib.sha256(), path.stat().st_size - _DIGEST
    with path.open("rb") as stream:
        while left > 0 and (piece := stream.read(min(left, 1 << 22))):
            hashed.update(piece)
            left -= len(piece)
        written = stream.read()
    return None if written == hashed.hexdigest().encode() else "its checksum does not match"


def seal(folder: Path, rank: int, world: int) -> None:
    """Writes checksums of this process's part of the files in a checkpoint's folder to a new file in this folder. Each
    of the ``world`` processes must call this function with its own ``rank``.
    """
    with atomic_write(folder / f"{rank}{SUMS}") as part:
        part.write_text("".join(f"{_sum(folder / name)}  {name}\n" for name in _files(folder)[rank::world]))


def _damaged_part(folder: Path) -> str | None:
    written: dict[str, str] = {}
    for file in folder.glob(f"*{SUMS}"):
        for line in file.read_text(errors="replace").splitlines():
            digest, _, name = line.partition("  ")
            written[name] = digest
    if not written:
        return "it is a folder without checksums"
    if sorted(written) != _files(folder):
        return "it contains other files than those that were written"
    return next(
        (f"the checksum of {name} does not match" for name in written if _sum(folder / name) != written[name]), None
    )


def _files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if SUMS not in file.name)


def _sum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sealed(buffer: io.BytesIO) -> memoryview:
    """Appends a SHA-256 checksum to the zip archive that ``torch.save`` wrote, and returns the bytes. The checksum is
    the comment of the archive, which ``torch.load`` ignores.
    """
    if bytes(buffer.getbuffer()[-_END : -_END + 4]) != b"PK\x05\x06":
        raise RuntimeError("torch.save did not write a zip archive that ends in its directory")
    buffer.seek(-2, io.SEEK_END)  # the last two bytes are the length of the comment
    buffer.write(_DIGEST.to_bytes(2, "little"))
    buffer.write(hashlib.sha256(buffer.getbuffer()).hexdigest().encode())
    return buffer.getbuffer()


def _keep(path: Path) -> None:
    """Gives ``last.ckpt`` the second name ``before.ckpt``. The older ``before.ckpt`` is removed."""
    if path.name != LAST or not path.is_file():
        return
    before = path.with_name(BEFORE)
    if before.is_dir():
        shutil.rmtree(before)
    before.unlink(missing_ok=True)
    try:
        os.link(path, before)
    except OSError:  # the file system has no hard links, so the checkpoint itself is renamed
        path.replace(before)
