"""Prepares the process of a run."""

from __future__ import annotations

import logging
import os
import warnings

import lightning as L
import torch


def prepare(seed: int) -> None:
    """Sets seeds and deterministic kernels, and makes libraries quiet unless the user set them otherwise."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.raiseExceptions = False  # on a full disk the run's own message is enough
    warnings.filterwarnings("ignore", module="lightning|transformers|peft")
    L.seed_everything(seed, verbose=False)
    torch.use_deterministic_algorithms(True, warn_only=True)
