"""What a run saves: its checkpoints, and the trained policy at its end."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from turnwise.config.settings import PolicySettings
from turnwise.errors import InputError
from turnwise.files import atomic_write, writing
from turnwise.models.policy import plain_copy, save_adapter
from turnwise.training.sharding import Whole, is_sharded


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


def export(model: Any, tokenizer: Any, folder: Path, policy: PolicySettings, writes: bool) -> None:
    """Writes the trained policy and its tokenizer to ``adapter`` (LoRA) or ``model`` (all weights) in the run's folder. The
    adapter of a run with ``policy.start`` contains that adapter too, so that both belong to ``policy.model``. All
    processes must call this function if the model is sharded; one ``writes``.
    """
    adapter = policy.lora.r > 0
    left = plain_copy(model) if policy.start and not adapter else Whole(model) if is_sharded(model) else model
    if not writes:
        return
    target = folder / ("adapter" if adapter else "model")
    with writing(target):
        if adapter:
            save_adapter(left, target, policy.start)
        else:
            left.save_pretrained(target, safe_serialization=True)
        tokenizer.save_pretrained(target)
