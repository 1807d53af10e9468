"""Writes and reads the checkpoint of a run in one file, which a kill never leaves half written."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from turnwise.errors import InputError
from turnwise.files import atomic_write


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file in its folder and then renames it. Lightning writes to the system's temporary
    folder: if that is on another file system, a kill could replace a good checkpoint by half of a new one.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        write_atomically(checkpoint, Path(path))

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return super().load_checkpoint(path, *args, **kwargs)  # type: ignore[no-any-return]
        except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise InputError(
                f"{path} is damaged ({next(iter(str(error).splitlines()), '')[:200]}); put back a copy, or remove "
                f"{Path(path).parent} to train again from the start, with the same result"
            ) from error


def write_atomically(content: dict[str, Any], path: Path) -> None:
    buffer = io.BytesIO()  # torch's own error for a full disk does not name the cause
    torch.save(content, buffer)
    with atomic_write(path) as part:
        part.write_bytes(buffer.getbuffer())


def last_checkpoint(folder: Path) -> Path | None:
    path = folder / "checkpoints" / "last.ckpt"
    return path if path.exists() else None
