"""Lightning's Trainer as a run has it, without what it would print or leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import lightning as L


def trainer(folder: Path, epochs: int, callbacks: Sequence[L.Callback] = ()) -> L.Trainer:
    """One iteration an epoch, on the CPU."""
    return L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        reload_dataloaders_every_n_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        default_root_dir=str(folder),
    )
