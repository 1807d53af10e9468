"""Prepares the process of a run: seeds, deterministic kernels, log levels and memory."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import warnings
from contextlib import suppress

import lightning as L
import torch


def prepare(seed: int) -> None:
    """Sets seeds and deterministic kernels, makes libraries quiet, and frees the memory of earlier runs in this
    process. Environment variables that the user has set are not changed.
    """
    give_back()
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.raiseExceptions = False  # so that on a full disk only the run's own message appears
    warnings.filterwarnings("ignore", module="lightning|transformers|peft")
    L.seed_everything(seed, verbose=False)
    torch.use_deterministic_algorithms(True, warn_only=True)


def give_back() -> None:
    """Frees the memory of earlier runs in this process, and returns free pages to the operating system.

    A trainer, its module and the figures of a report refer to each other in cycles. Python searches for old cycles only
    after the number of objects has grown by a quarter, but a run with gigabytes of tensors has few objects. Without
    this function, the memory of all runs of a sweep would add up. What is left are mostly the libraries, half a million
    objects. They are frozen, because every later search would visit all of them.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    with suppress(OSError, AttributeError):  # only glibc has this function
        ctypes.CDLL(None).malloc_trim(0)
