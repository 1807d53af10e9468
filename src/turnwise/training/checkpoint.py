"""Atomic checkpoints with checksums. The previous checkpoint is kept in case the newest one is damaged later."""

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
SUMS = ".sha256"  # end of the names of files with checksums, in the format of sha256sum
_DIGEST = 64  # hex digits of SHA-256
_END = 22  # bytes of a zip archive's end record without its comment


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file in the same folder and renames it.

    Lightning's own class writes to the system's temporary folder. Moving the file to another file system is a copy, so
    a kill or a full disk could leave half a checkpoint in place of the good one.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Replaces the checkpoint at ``path`` and keeps the previous one beside it as ``before.ckpt``.

        Raises:
            OSError: the checkpoint cannot be written; the previous one stays.
        """
        buffer = io.BytesIO()  # on a full disk, torch's own writing raises an error that does not say so
        torch.save(checkpoint, buffer)
        _keep(Path(path))  # before writing, so that a disk needs room for two checkpoints, not three
        with atomic_write(Path(path)) as part:
            part.write_bytes(sealed(buffer))


def newest(folder: Path, log: Callable[[str], None]) -> Path | None:
    """Returns the newest undamaged checkpoint of a run's ``checkpoints`` folder; None if the folder has none.

    A damaged newest checkpoint is renamed to ``damaged.ckpt``, so that the next save does not keep it as the previous
    one.

    Args:
        folder: the run's ``checkpoints`` folder.
        log: is called with one line that says what was damaged and from which checkpoint the run resumes.

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
                shutil.rmtree(folder / DAMAGED, ignore_errors=True)  # a folder cannot replace another
                (folder / LAST).replace(folder / DAMAGED)
                log(f"{bad[0]}; it is now {DAMAGED}, and the run resumes from the previous one, {path}")
            return path
        bad.append(f"{path} is damaged ({why})")
    if bad:
        raise InputError(
            f"{'; '.join(bad)}; put back a copy, or remove {folder}: training then begins again, with the same result"
        )
    return None


def damage(path: Path) -> str | None:
    """Returns what is wrong with a checkpoint, or None if its bytes are those that were written."""
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
    """Writes checksums of a folder's files; each process handles its share of the files."""
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
        return "it holds other files than were written"
    return next(
        (f"the checksum of {name} does not match" for name in written if _sum(folder / name) != written[name]), None
    )


def _files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if SUMS not in file.name)


def _sum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sealed(buffer: io.BytesIO) -> memoryview:
    """Returns what ``torch.save`` wrote with its SHA-256 as the archive's comment, which ``torch.load`` ignores."""
    if bytes(buffer.getbuffer()[-_END : -_END + 4]) != b"PK\x05\x06":
        raise RuntimeError("torch.save did not write a zip archive that ends in its directory")
    buffer.seek(-2, io.SEEK_END)  # the last two bytes are the length of the comment
    buffer.write(_DIGEST.to_bytes(2, "little"))
    buffer.write(hashlib.sha256(buffer.getbuffer()).hexdigest().encode())
    return buffer.getbuffer()


def _keep(path: Path) -> None:
    """Keeps the checkpoint at ``path`` under the name of the previous one too."""
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
