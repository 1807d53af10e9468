"""Checks the arguments of Lightning's Trainer and of its checkpoint callback in a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ON_GPU = ("gpu", "cuda")
_ACCELERATORS = ("cpu", *ON_GPU, "auto")
_STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false")
# Float16 scales the loss, so update.clip_norm would be the limit of scaled gradients. Lightning's bf16-true fails on the
# data of an update; policy.dtype=bfloat16 sets the type of the weights.
_PRECISIONS = ("32-true", "bf16-mixed")
_PROFILERS = ("simple", "advanced", "pytorch", None)
_FREE = """
    accelerator strategy devices num_nodes precision max_epochs log_every_n_steps reload_dataloaders_every_n_epochs
    num_sanity_val_steps deterministic benchmark detect_anomaly profiler sync_batchnorm
"""  # arguments of the Trainer that a configuration may set
_ELSEWHERE = {  # other arguments of the Trainer -> the setting of a run to use instead
    "callbacks": "add a callback under a new name, as callbacks.NAME={_target_: ...}",
    "enable_checkpointing": "the run always writes checkpoints; their settings are in callbacks.checkpoint",
    "logger": "add a logger under a new name, as logger.NAME={_target_: ...}, or disable W&B with logger.wandb=null",
    "default_root_dir": "set paths.out",
    **dict.fromkeys(
        ("check_val_every_n_epoch", "val_check_interval", "limit_val_batches"),
        "set eval.every, the number of iterations between two evaluations",
    ),
    **dict.fromkeys(
        ("max_steps", "max_time", "min_epochs", "min_steps", "limit_train_batches", "overfit_batches", "fast_dev_run"),
        "set trainer.max_epochs, the number of iterations of the run; debug=tiny starts a short run",
    ),
    **dict.fromkeys(("gradient_clip_val", "gradient_clip_algorithm"), "set update.clip_norm"),
    "accumulate_grad_batches": "set update.batch_tokens, which changes no result",
}
_FIXED = {  # argument of the Trainer -> the only value it may have, and the reason
    "reload_dataloaders_every_n_epochs": (1, "each iteration collects new rollouts"),
    "num_sanity_val_steps": (0, "the run itself evaluates the base policy before training"),
}


_CHECKPOINT = {"filename": "last", "save_top_k": 1, "save_on_train_epoch_end": True, "enable_version_counter": False}
_LIGHTNINGS = "lightning.pytorch.callbacks.ModelCheckpoint"


def lost_checkpoints(cfg: Mapping[str, Any]) -> list[str]:
    """Reports settings of ``callbacks.checkpoint`` with which a resumed run would not find its last checkpoint."""
    node = (cfg.get("callbacks") or {}).get("checkpoint")
    if node is None and cfg.get("trainer"):
        return [
            "callbacks.checkpoint: a killed run resumes from this checkpoint; leave this callback as in "
            "conf/callbacks/default.yaml"
        ]
    if not isinstance(node, Mapping) or node.get("_target_") != _LIGHTNINGS:
        return []
    mistakes = [
        f"callbacks.checkpoint.{key}: this value must stay {value}, or a killed run would not resume; got {node[key]!r}"
        for key, value in _CHECKPOINT.items()
        if key in node and (node[key] != value or type(node[key]) is not type(value))
    ]
    if node.get("dirpath") != f"{(cfg.get('paths') or {}).get('out')}/checkpoints":
        mistakes.append(
            "callbacks.checkpoint.dirpath: a run looks for checkpoints in ${paths.out}/checkpoints; do not change it"
        )
    every = node.get("every_n_epochs", 1)
    if not _whole(every, 1):
        mistakes.append(
            "callbacks.checkpoint.every_n_epochs: the number of iterations between two checkpoints must be a whole "
            f"number of at least 1, got {every!r}"
        )
    known = {*_CHECKPOINT, "dirpath", "every_n_epochs", "_target_"}
    return mistakes + [
        f"callbacks.checkpoint.{key}: a run always keeps exactly its last two checkpoints; leave out this key"
        for key in map(str, node)
        if key not in known
    ]


def impossible_trainer(cfg: Mapping[str, Any]) -> list[str]:
    """Reports mistakes in the settings of ``trainer``: values that Lightning would refuse with a traceback, and
    arguments that would be ignored because the run sets them itself.
    """
    trainer = cfg.get("trainer")
    if not isinstance(trainer, Mapping):
        return []
    mistakes = [
        f"trainer.{key}: the run sets this argument itself; {_ELSEWHERE.get(key, 'leave it out')}"
        for key in map(str, trainer)
        if not key.startswith("_") and key not in _FREE.split()
    ]
    mistakes += [
        f"trainer.{key}: this value must stay {value}, because {why}; got {trainer[key]!r}"
        for key, (value, why) in _FIXED.items()
        if key in trainer and (trainer[key] != value or isinstance(trainer[key], bool))
    ]
    profiler = trainer.get("profiler")
    if not isinstance(profiler, Mapping) and profiler not in _PROFILERS:
        mistakes.append(f"trainer.profiler: must be one of {', '.join(_PROFILERS[:-1])}, or null; got {profiler!r}")
    precision = trainer.get("precision", _PRECISIONS[0])
    if precision not in _PRECISIONS:
        mistakes.append(
            f"trainer.precision: must be one of {', '.join(_PRECISIONS)} (matrix products in bfloat16); got {precision!r}"
        )
    strategy = trainer.get("strategy", "auto")
    if strategy not in _STRATEGIES and not (isinstance(strategy, Mapping) and "_target_" in strategy):
        mistakes.append(
            f"trainer.strategy: must be one of {', '.join(_STRATEGIES)}, or trainer=fsdp, which shards weights; "
            f"got {strategy!r}"
        )
    accelerator, devices = trainer.get("accelerator", "auto"), trainer.get("devices", "auto")
    if accelerator not in _ACCELERATORS:
        mistakes.append(f"trainer.accelerator: must be one of {', '.join(_ACCELERATORS)}; got {accelerator!r}")
    elif accelerator == "cpu" and devices != "auto" and not _whole(devices, 1):
        mistakes.append(f"trainer.devices: must be a number of processes on a machine, at least 1; got {devices!r}")
    elif devices not in ("auto", -1) and not _whole(devices, 1) and not places(devices):
        mistakes.append(
            "trainer.devices: must be a number of GPUs (at least 1), -1 or auto for all GPUs, or a list of GPU "
            f"indices; got {devices!r}"
        )
    for name, least, meaning in (
        ("num_nodes", 1, "machines of the run"),
        ("max_epochs", 0, "iterations (0: only evaluate the base policy)"),
        ("log_every_n_steps", 0, "optimiser steps between two lines of a log"),
    ):
        if name in trainer and not _whole(trainer[name], least):
            mistakes.append(
                f"trainer.{name}: the number of {meaning} must be a whole number of at least {least}, got "
                f"{trainer[name]!r}"
            )
    return mistakes


def places(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(_whole(item, 0) for item in value)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
