"""Checkpoints that are whole or not there, wherever they lie."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from turnwise.files import whole


class WholeCheckpointIO(TorchCheckpointIO):
    """Lightning's own writes to the system's temporary folder and moves the file from there.

    Onto another file system a move is a copy: a kill or a full disk in its middle would leave half a checkpoint in the
    place of the good one.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Replace the checkpoint at ``path``.

        Raises:
            OSError: it cannot be written; the one before it stays.
        """
        buffer = io.BytesIO()  # torch writes to a full disk without naming the error
        torch.save(checkpoint, buffer)
        with whole(Path(path)) as part:
            part.write_bytes(buffer.getbuffer())
