"""What makes two runs the same: everything that decides what a run computes, and nothing that only names or shows it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

# what names a run or shows it, and changes nothing that it computes
_SHOWN_ONLY = (
    "name",
    "fresh",
    "paths",
    "logger",
    "table",
    "judge.client",  # the same model may answer at another address
    "judge.cache",
    "engine.urls",  # and the same weights
    "engine.lanes",
    "rollout.environment_threads",
    "rollout.spool",  # what a killed start leaves to the next one
    "engine.key_variable",
    "engine.patience",
    *(f"engine.local.{name}" for name in ("python", "servers", "devices", "rows", "kv_gb", "eager")),
    "update.max_skips",  # when a run gives up; one that goes on is the same
    "update.allow_empty",
    "callbacks.progress",
    "callbacks.checkpoint.dirpath",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.enable_model_summary",
    "update.recompute",
    "update.offload",
    # where it runs: the processes of a run do together what one would do (docs/scaling.md)
    *(f"trainer.{name}" for name in ("devices", "num_nodes", "strategy")),
)
# keys that are younger than the first runs: with this value a run is the one that it was without them
_AS_BEFORE = {
    "rollout.staleness": 0,
    "update.steps": 1,
    "data.held_out": 0.1,
    "data.similarity": 0.8,
    "advantage.mean_over": "trained",
    "states.refresh_window": 3,
    "states.refresh_gap": 6,
    "states.refresh_most": 4,
}
# what is looked at in between changes nothing that is trained: it counts as never, as in the first runs
_AS_IF = {"eval.every": 0}


def config_hash(cfg: DictConfig) -> str:
    """Twelve hex digits of everything that decides what a run computes: not its name, its paths or its loggers."""
    return hash_of(recorded(cfg))


def hash_of(record: Mapping[str, Any]) -> str:
    """As :func:`config_hash`, of what :func:`recorded` gave."""
    text = json.dumps(record, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def recorded(cfg: DictConfig) -> dict[str, Any]:
    """Leaves of what decides a run, by dotted key."""
    leaves = flat(_record(cfg))
    return {
        key: _AS_IF.get(key, value)
        for key, value in leaves.items()
        if key not in _AS_BEFORE or value != _AS_BEFORE[key]
    }


def _record(cfg: DictConfig) -> dict[str, Any]:
    record = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(record, dict)
    for key in _SHOWN_ONLY:
        *parents, last = key.split(".")
        node: Any = record
        for parent in parents:
            node = (node or {}).get(parent)
        if isinstance(node, dict):
            node.pop(last, None)
    return {str(key): value for key, value in record.items()}


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key. An empty mapping and null are the same: a part that is not used."""
    if isinstance(node, Mapping):
        leaves: dict[str, Any] = {}
        for key, value in node.items():
            leaves.update(flat(value, f"{prefix}.{key}" if prefix else str(key)))
        return leaves
    return {} if node is None else {prefix: node}
