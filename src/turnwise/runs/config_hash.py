"""Computes a hash that identifies a run: the hash of the settings that decide what the run computes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

# settings that do not change what a run computes, such as its name, folder or progress display
_SHOWN_ONLY = (
    "name",
    "fresh",
    "paths",
    "logger",
    "table",
    "judge.client",  # the same model may answer at another address
    "judge.cache",
    "engine.url",  # the same weights may be served at another address
    "engine.lanes",
    "rollout.environment_threads",
    "rollout.spool",  # only decides how a killed run resumes
    "engine.key_variable",
    *(f"engine.{name}" for name in ("concurrency", "attempts", "attempt_limit", "wait_limit", "backoff")),
    "update.max_skips",  # only decides when a run gives up
    "update.allow_empty",
    "callbacks.progress",
    "callbacks.checkpoint.dirpath",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.enable_model_summary",
    "update.recompute",
    "update.offload",
    # several processes together compute the same result as one process (docs/scaling.md)
    *(f"trainer.{name}" for name in ("devices", "num_nodes", "strategy")),
)
# Keys that were added to the configuration later, each with the value that means the older behaviour. A key with this
# value does not enter the hash, so that hashes of runs without the key stay valid.
_AS_BEFORE = {
    "rollout.staleness": 0,
    "engine.schedule": "rounds",
    "update.steps": 1,
    "eval.seed": 0,
    "data.held_out": 0.1,
    "data.similarity": 0.8,
    "data.word_overlap": 0.1,
    "data.pass_rates": True,
    "advantage.mean_over": "trained",
    "states.refresh_window": 3,
    "states.refresh_gap": 6,
    "states.refresh_most": 4,
    "env.verifier": "oracle",
    **{f"env.worlds.{name}.verifier": "oracle" for name in ("household", "bfcl", "apibank", "search")},
}
# Evaluation during training does not change what is trained, so every value of this key is hashed as 0 (never).
_AS_IF = {"eval.every": 0}


def config_hash(cfg: DictConfig) -> str:
    """Returns the run's hash of 12 hex digits, computed from the settings that decide what the run computes."""
    return hash_of(recorded(cfg))


def hash_of(record: Mapping[str, Any]) -> str:
    """Returns the hash (12 hex digits) of the settings that :func:`recorded` returned."""
    text = json.dumps(record, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def recorded(cfg: DictConfig) -> dict[str, Any]:
    """Returns dotted key -> value for the settings that decide what a run computes."""
    leaves = flat(_record(cfg))
    if leaves.get("engine.in_flight") is False:  # older configurations have this key under another name
        leaves["engine.allow_stale"] = leaves.pop("engine.in_flight")
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


def shown_only(key: str) -> bool:
    """Returns whether the setting ``key`` does not change what a run computes, so that it does not enter the hash. The
    key may be written in Hydra's syntax for overrides, with ``+``, ``~``, ``/`` or ``@``.
    """
    plain = key.lstrip("+~").partition("@")[0].replace("/", ".")
    return any(plain == name or plain.startswith(f"{name}.") for name in _SHOWN_ONLY)


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to dotted key -> value, without unused parts (values of None and empty mappings)."""
    if isinstance(node, Mapping):
        leaves: dict[str, Any] = {}
        for key, value in node.items():
            leaves.update(flat(value, f"{prefix}.{key}" if prefix else str(key)))
        return leaves
    return {} if node is None else {prefix: node}
