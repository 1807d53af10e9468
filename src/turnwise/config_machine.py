"""Checks whether this machine can run a configuration: devices of the trainer, folders to write to, models."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turnwise.config import ConfigError
from turnwise.errors import InputError
from turnwise.models.hub import at_hand
from turnwise.tiny.load import BASES

_ON_GPU = ("gpu", "cuda")
_ACCELERATORS = ("cpu", *_ON_GPU, "auto")
_LONGEST = 255  # bytes of a file's name


def impossible_trainer(cfg: Mapping[str, Any]) -> list[str]:
    """Values of a resolved configuration's ``trainer`` that no machine can use, and that Lightning refuses with a traceback."""
    trainer = cfg.get("trainer")
    if not isinstance(trainer, Mapping):
        return []
    mistakes = []
    accelerator, devices = trainer.get("accelerator", "auto"), trainer.get("devices", "auto")
    if accelerator not in _ACCELERATORS:
        mistakes.append(f"trainer.accelerator: a run computes on {', '.join(_ACCELERATORS)}; got {accelerator!r}")
    elif accelerator == "cpu" and devices != "auto" and not _whole(devices, 1):
        mistakes.append(f"trainer.devices: processes of a machine, at least 1; got {devices!r}")
    elif devices not in ("auto", -1) and not _whole(devices, 1) and not _places(devices):
        mistakes.append(
            f"trainer.devices: a number of GPUs from 1 up, -1 or auto for all, or a list of their places; got {devices!r}"
        )
    for name, least, meaning in (
        ("num_nodes", 1, "machines of the run"),
        ("max_epochs", 0, "iterations, and 0 measures the base policy alone"),
        ("log_every_n_steps", 0, "optimiser steps between two lines of a log"),
    ):
        if name in trainer and not _whole(trainer[name], least):
            mistakes.append(f"trainer.{name}: {meaning}: a whole number from {least} up; got {trainer[name]!r}")
    return mistakes


def check_machine(cfg: DictConfig) -> None:
    """Refuse a run that this machine cannot begin: it lacks GPUs, folders cannot be written, or models are neither here nor can
    be fetched.

    This check is made where a run starts, and not where its configuration is composed, because a plan or a sweep may be made on
    another machine.

    Raises:
        ConfigError: with every mistake found.
    """
    mistakes = [*_gpus(cfg), *_folders(cfg), *_models(cfg)]
    if mistakes:
        raise ConfigError(mistakes)


def _gpus(cfg: DictConfig) -> list[str]:
    accelerator, devices = (OmegaConf.select(cfg, f"trainer.{name}") for name in ("accelerator", "devices"))
    if accelerator not in _ON_GPU:
        return []
    import torch  # heavy, and only needed here

    if not torch.cuda.is_available():
        return [
            f"trainer.accelerator={accelerator}: torch {torch.__version__} finds no CUDA device on this machine; choose "
            "trainer=cpu, or see whether nvidia-smi lists one and whether this torch is built for CUDA"
        ]
    started = any(
        name in os.environ for name in ("LOCAL_RANK", "SLURM_PROCID")
    )  # its launcher may show it one GPU alone
    needed = devices if isinstance(devices, int) else 1 + max(devices, default=0) if _places(devices) else 0
    there = torch.cuda.device_count()
    return [f"trainer.devices={devices}: this machine has {there}"] if needed > there and not started else []


def _folders(cfg: DictConfig) -> list[str]:
    mistakes = []
    for key in ("paths.out", "paths.cache"):
        given = str(OmegaConf.select(cfg, key) or "")
        if not given.strip():
            mistakes.append(f"{key}: empty; name a folder to write to")
        elif "\0" in given or any(len(part.encode(errors="replace")) > _LONGEST for part in Path(given).parts):
            mistakes.append(
                f"{key}: no name of a folder is longer than {_LONGEST} bytes; give a shorter one (name=...)"
            )
        else:
            path = next(path for path in (Path(given), *Path(given).absolute().parents) if os.path.lexists(path))
            if not path.is_dir():
                mistakes.append(f"{key}={given}: {path} is not a folder; remove it, or name another place")
            elif not os.access(path, os.W_OK | os.X_OK):
                mistakes.append(f"{key}={given}: nothing can be written to {path}; name another place")
    return mistakes


def _models(cfg: DictConfig) -> Iterator[str]:
    for key in ("policy.model", "predictor.model"):
        model = OmegaConf.select(cfg, key)
        if isinstance(model, str) and model not in BASES:
            try:
                at_hand(model, key)
            except InputError as error:
                yield str(error)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _places(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(_whole(item, 0) for item in value)
