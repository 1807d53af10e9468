"""Reads, writes and compares the ``config.yaml`` in a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.schema import ConfigError
from turnwise.files import atomic_write
from turnwise.runs.config_hash import flat, recorded

RECORD = "config.yaml"
_MOST = 2**20  # greatest size of config.yaml in bytes; a complete configuration has about ten thousand bytes
_ABSENT = "not set"
_SHOWN = 30  # greatest number of differences that a message lists


def write_record(cfg: DictConfig, folder: Path) -> None:
    """Writes the resolved configuration ``cfg`` to ``config.yaml`` in the run's folder.

    Raises:
        OSError: the file cannot be written.
    """
    with atomic_write(folder / RECORD) as part:
        part.write_text(OmegaConf.to_yaml(cfg, resolve=True, sort_keys=False), encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """Reads ``config.yaml`` in ``folder`` and returns the settings that decide what the run in this folder computes
    (:func:`turnwise.runs.config_hash.recorded`).

    Raises:
        ConfigError: the file is damaged or is not a configuration. The message names the file and the remedy.
    """
    path = folder / RECORD
    try:
        if not path.is_file():
            raise ValueError("it is not a regular file")
        if path.stat().st_size > _MOST:
            raise ValueError(f"it has more than {_MOST} bytes")
        text = path.read_text(encoding="utf-8")
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):  # an alias may expand to any size
            raise ValueError("it contains a YAML alias, which no run writes")
        cfg = OmegaConf.create(text)
        if not isinstance(cfg, DictConfig):
            raise ValueError("it is not a mapping of keys to values")
        return recorded(cfg)
    except (
        AssertionError,  # raised by OmegaConf for a single number
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        yaml.YAMLError,
        OmegaConfBaseException,
    ) as error:
        said = " ".join(str(error).split())[:200].encode("unicode_escape").decode()
        raise ConfigError(
            [
                f"{path} is damaged ({said or type(error).__name__}), so nobody can tell which run the folder holds; "
                "restore the file, give the new run a folder of its own (name=...), or rename this folder (fresh=true)"
            ]
        ) from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Compares the settings of two runs and returns one line for each key whose values differ.

    In a line such as ``loss.clip_high: 0.2 in the other run, 0.3 in this run``, the value in ``old`` comes first. After
    30 lines, a last line gives the number of further differences.
    """
    there, here = flat(old), flat(new)
    lines = [
        f"{key}: {there.get(key, _ABSENT)} in the other run, {here.get(key, _ABSENT)} in this run"
        for key in sorted(there.keys() | here.keys())
        if there.get(key, _ABSENT) != here.get(key, _ABSENT)
    ]
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more"]
