"""Computes a hash that identifies a run: the hash of the settings that decide what the run computes, with the names of
the parts. Moving code changes no hash; changing or adding a default does.
"""

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
    "rollout.spool",  # of older runs: decided how a killed run resumed
    "engine.key_variable",
    *(f"engine.{name}" for name in ("concurrency", "attempts", "attempt_limit", "wait_limit", "backoff")),
    "update.max_skips",  # only decides when a run gives up
    "update.allow_empty",
    "eval.every",  # evaluation during training does not change what is trained
    "callbacks.progress",
    "callbacks.checkpoint.dirpath",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.enable_model_summary",
    "update.memory_gb",
    "update.recompute",
    "update.offload",
    # several processes together compute the same result as one process (docs/scaling.md)
    *(f"trainer.{name}" for name in ("devices", "num_nodes", "strategy")),
)
# packages whose parts are identified by the name of their class alone, so that code can move between modules
_OWN = ("turnwise", "turnwise_worlds", "turnwise_study")


def config_hash(cfg: DictConfig) -> str:
    """Returns the run's hash of 12 hex digits, computed from the settings that decide what the run computes."""
    return hash_of(recorded(cfg))


def hash_of(record: Mapping[str, Any]) -> str:
    """Returns the hash (12 hex digits) of the settings that :func:`recorded` returned."""
    text = json.dumps(record, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def recorded(cfg: DictConfig) -> dict[str, Any]:
    """Returns dotted key -> value for the settings that decide what a run computes. A part of this project has the name
    of its class in place of its import path; any other part keeps its path.
    """
    return flat(_named(_record(cfg)))


def _named(node: Any) -> Any:
    if isinstance(node, list):
        return [_named(item) for item in node]
    if not isinstance(node, dict):
        return node
    named = {key: _named(value) for key, value in node.items()}
    target = named.get("_target_")
    if isinstance(target, str) and target.partition(".")[0] in _OWN:
        named["_target_"] = target.rpartition(".")[2]
    return named


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
