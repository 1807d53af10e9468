"""Checks whether this machine can run a configuration: GPUs, folders, files, models, and what the environment needs. All
of it is answered before torch is imported.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf

from turnwise.config.conflicts import Settings
from turnwise.config.schema import ConfigError, build
from turnwise.env import check_ready
from turnwise.errors import InputError
from turnwise.files import expanded
from turnwise.hub import at_hand, check_adapter, check_length, read_config
from turnwise.shipped import BASES, weights_of

_ON_GPU = ("gpu", "cuda")
_LOOKED_AT = 2000  # number of records of a file that are checked before the run reads all of them


def check_machine(cfg: DictConfig) -> None:
    """Refuses a run that this machine cannot start. The ConfigError lists all reasons. A plan or a sweep may be composed
    on another machine, so this check is made when a run starts.
    """
    mistakes = [*_gpus_of_machine(cfg), *_folders_of_machine(cfg), *missing_files(cfg), *_models_of_machine(cfg)]
    if cfg.get("check") and cfg.policy.lora.r and (away := _away(cfg)):
        mistakes.append(f"{away}; start the server first")
    if mistakes:
        raise ConfigError(mistakes)


def opening(cfg: DictConfig) -> str:
    """The first line of a run, and a second one if the server of ``engine=vllm`` is not there yet."""
    devices, cores = cfg.trainer.devices, os.cpu_count() or 1
    shared = ""
    if cfg.trainer.accelerator == "cpu" and isinstance(devices, int) and devices > cores:
        shared = f" in {devices} processes that share {cores} cores, which is slower than trainer.devices={cores}"
    away = "" if cfg.get("check") else _away(cfg)
    wait = away and f"\n{away}; the run will wait for it up to engine.wait_limit={cfg.engine.wait_limit} s"
    return f"{cfg.method}: the settings are fine; checking files and models, then loading PyTorch{shared}{wait}"


def check_inputs(cfg: DictConfig) -> Any:
    """Returns the environment, which is ready, or raises an InputError: no record of the file can be used, or the
    environment lacks a file or a program.
    """
    if cfg.data.file is not None:
        from turnwise.data.trajectories import read_trajectories  # here, because it is slow to import

        read_trajectories(cfg.data.file, bool(cfg.data.strict), most=_LOOKED_AT)
    check_ready(environment := build(cfg, "env"))
    return environment


def _gpus_of_machine(cfg: DictConfig) -> list[str]:
    accelerator, devices = (OmegaConf.select(cfg, f"trainer.{name}") for name in ("accelerator", "devices"))
    if accelerator not in _ON_GPU:
        return []
    installed = version("torch")
    if not installed.endswith("+cpu"):  # with a torch for CPUs, the answer is known without the slow import
        import torch
    if installed.endswith("+cpu") or not torch.cuda.is_available():
        remedy = "choose trainer=cpu, or check that nvidia-smi lists one and that this torch is built for CUDA"
        return [f"trainer.accelerator={accelerator}: torch {installed} finds no CUDA device on this machine; {remedy}"]
    # A launcher may have made only one GPU visible to this process.
    started = any(name in os.environ for name in ("LOCAL_RANK", "SLURM_PROCID"))
    needed = devices if isinstance(devices, int) else 0 if isinstance(devices, str) else 1 + max(devices, default=0)
    there = torch.cuda.device_count()
    if needed <= there or started:
        return []
    return [f"trainer.devices={devices}: this machine has only {there} GPUs; choose GPUs that it has"]


def _folders_of_machine(cfg: DictConfig) -> Iterator[str]:
    for key in ("paths.out", "paths.cache"):
        folder = str(OmegaConf.select(cfg, key) or "")
        if not folder.strip():
            yield f"{key}: the value is empty; name a folder to write to"
            continue
        if any(len(os.fsencode(part)) > 255 for part in Path(folder).parts):  # of any file system
            yield f"{key}: a folder's name may have at most 255 bytes; give another name=..."
            continue
        path = next(path for path in (Path(folder), *Path(folder).absolute().parents) if os.path.lexists(path))
        if not path.is_dir():
            yield f"{key}={folder}: {path} is not a folder; remove {path}, or name another folder"
        elif not os.access(path, os.W_OK | os.X_OK):
            yield f"{key}={folder}: {path} is not writable; name another folder"
    out, cache = (Path(os.path.realpath(str(OmegaConf.select(cfg, f"paths.{name}")))) for name in ("out", "cache"))
    if cache.is_relative_to(out):
        yield f"paths.cache={cache}: all runs share the cache; name a folder outside the run's folder, which may be renamed"


def missing_files(cfg: DictConfig) -> Iterator[str]:
    """Yields a message for each file of data that a setting names and that does not exist."""
    tree = {key: OmegaConf.to_container(cfg[key], resolve=True) for key in ("data", "env") if cfg.get(key)}
    for key, file in Settings(tree).items():
        of_data = key == "data.file" or str(file).endswith((".json", ".jsonl", ".parquet", ".csv", ".tsv"))
        if file is not None and of_data and not expanded(str(file)).is_file():
            yield f"{key}={file}: no such file; correct {key} (the current folder is {Path.cwd()})"


def _away(cfg: DictConfig) -> str:
    """That the run's server does not answer. One that loads whole weights starts only when the run has written them."""
    url = urlsplit(str(OmegaConf.select(cfg, "engine.url") or ""))
    if url.hostname:
        try:
            socket.create_connection((url.hostname, url.port or (443 if url.scheme == "https" else 80)), 4).close()
        except ConnectionRefusedError:
            return f"engine.url={url.geturl()}: nothing answers there (docs/engines.md has the server's command)"
        except OSError:  # such as a proxy's address: the run itself says more
            pass
    return ""


def _models_of_machine(cfg: DictConfig) -> Iterator[str]:
    start = OmegaConf.select(cfg, "policy.start")
    for key in ("policy.model", "predictor.model"):
        model = OmegaConf.select(cfg, key)
        try:
            if isinstance(model, str) and model not in BASES:
                at_hand(weights_of(model), key)
            if key == "policy.model":
                check_length(
                    read_config(weights_of(model)), OmegaConf.select(cfg, "rollout.max_length") or 0, f"{key}={model}"
                )
                if start:
                    check_adapter(Path(start), weights_of(model))
        except InputError as error:
            yield str(error)
