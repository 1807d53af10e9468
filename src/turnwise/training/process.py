"""What a run asks of its process before it begins, and of its loggers when it ends."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import WandbLogger


def prepare(seed: int) -> None:
    """Seeds and deterministic kernels; W&B offline and libraries quiet, where nobody said otherwise."""
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.raiseExceptions = False  # a library's log that finds no room is no news beside the run's own message
    warnings.filterwarnings("ignore", module="lightning|transformers|peft")
    L.seed_everything(seed, verbose=False)
    torch.use_deterministic_algorithms(True, warn_only=True)


def finish(loggers: Iterable[Any], tell: Callable[[str], None]) -> None:
    """End W&B's run: a sweep runs many in one process, and the next one must not write into this one's."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            try:
                logger.experiment.finish()
            except Exception as error:  # its process may have got the signal that ends this one, too
                tell(f"W&B: {type(error).__name__}: {error}")
