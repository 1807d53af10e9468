"""What a run asks of its process before it begins."""

from __future__ import annotations

import logging
import os
import warnings

import lightning as L
import torch


def prepare(seed: int) -> None:
    """Seeds and deterministic kernels; libraries quiet, where nobody said otherwise."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.raiseExceptions = False  # a library's log that finds no room is no news beside the run's own message
    warnings.filterwarnings("ignore", module="lightning|transformers|peft")
    L.seed_everything(seed, verbose=False)
    torch.use_deterministic_algorithms(True, warn_only=True)
