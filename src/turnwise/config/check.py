"""Checks a configuration before anything is loaded, and reports all mistakes at once, with the nearest valid names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.execution_conflicts import impossible_execution
from turnwise.config.hints import meant
from turnwise.config.parameter_mistakes import parameter_mistakes
from turnwise.config.part_conflicts import impossible_combinations
from turnwise.config.schema import ConfigError, RunConfig
from turnwise.config.secrets import secrets_in
from turnwise.config.trainer_arguments import impossible_trainer, lost_checkpoints
from turnwise.config.unusable_values import bad_name, bad_seed, too_large
from turnwise.errors import first_line

_NEEDED = ("env", "data", "states", "gate", "rollout", "loss", "update", "policy", "engine", "trainer", "eval")


def check_config(cfg: DictConfig) -> None:
    """Refuses a configuration that cannot run. The ConfigError lists all mistakes.

    The settings of every part with a ``_target_``, at any depth, are compared with the signature of the part's
    constructor. This finds unknown and missing parameters, wrong types and wrong ``Literal`` values. A part that is a
    dataclass of Turnwise is built once, so that its own range checks run. Parts that cannot work together are reported
    too.
    """
    try:
        tree: Any = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError([f"{error.full_key or 'config'}: {first_line(error)}"]) from error
    if secrets := list(secrets_in(tree)):  # reported alone, because other messages repeat values
        raise ConfigError(secrets)
    mistakes = [*_unknown_or_missing(tree), *bad_name(tree.get("name"))]
    mistakes += [f"{key}: this key has no value; set {key}=..." for key in sorted(OmegaConf.missing_keys(cfg))]
    mistakes += _walk(tree, "")
    reported = {mistake.split(":")[0] for mistake in mistakes}
    later = impossible_trainer(tree) + lost_checkpoints(tree) + too_large(tree) + bad_seed(tree.get("seed"))
    later += impossible_combinations(tree) + impossible_execution(tree)
    mistakes += [mistake for mistake in later if mistake.split(":")[0] not in reported]
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))  # two checks may report the same mistake


def _unknown_or_missing(tree: Mapping[str, Any]) -> list[str]:
    """Reports top-level keys that nothing reads (for example from ``+key=...``), missing parts that every run needs,
    and loggers and callbacks without a ``_target_``.
    """
    known = {field.name for field in fields(RunConfig)}
    extra = [str(key) for key in tree if key not in known]
    own = {str(key): value for key, value in tree.items() if key in known}
    mistakes = [f"{key}: there is no key '{key}'{meant(key, own)}" for key in extra]
    mistakes += [
        f"{key}: every run needs this part; do not remove it with ~{key} or {key}=null"
        for key in _NEEDED
        if "callbacks" in own and own.get(key) is None  # a configuration without callbacks is only a part of a run
    ]
    for group in ("logger", "callbacks"):
        for name, part in (own.get(group) or {}).items():
            if part and not (isinstance(part, Mapping) and "_target_" in part):
                mistakes.append(f"{group}.{name}: must be a part with a _target_, or null for none; got {part!r}")
    return mistakes


def _walk(node: Any, path: str) -> list[str]:
    """Returns the mistakes in a node and in all nodes below it."""
    mistakes: list[str] = []
    children = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        mistakes += _walk(child, f"{path}.{key}" if path else str(key))
    if isinstance(node, Mapping) and "_target_" in node:
        mistakes += parameter_mistakes(node, path, not mistakes)
    return mistakes
