"""The records by which a run's folder is known again: ``config.yaml``, whose run it is, and ``result.json``, that it is done."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.schema import ConfigError
from turnwise.files import atomic_write
from turnwise.runs.identity import flat, recorded

RECORD, RESULT = "config.yaml", "result.json"
_MOST = 2**20  # bytes; a whole configuration has some ten thousand
_OF_A_RESULT = {"method", "env", "scale", "seed", "in_domain"}  # that every result has (reports.result)
_ABSENT = "nothing"
_SHOWN = 30  # lines of differences


def write_record(cfg: DictConfig, folder: Path) -> None:
    """Keep the resolved configuration in the folder.

    Raises:
        OSError: it cannot be written.
    """
    with atomic_write(folder / RECORD) as part:
        part.write_text(OmegaConf.to_yaml(cfg, resolve=True, sort_keys=False), encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """What decides the run whose folder this is, as :func:`turnwise.runs.identity.recorded` gives it.

    Raises:
        ConfigError: the file is damaged or is no configuration; the message names it and the remedy.
    """
    path = folder / RECORD
    try:
        if not path.is_file():
            raise ValueError("it is no regular file")
        if path.stat().st_size > _MOST:
            raise ValueError(f"more than {_MOST} bytes")
        text = path.read_text(encoding="utf-8")
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):  # may stand for any amount of memory
            raise ValueError("it holds an alias, which no run has written")
        cfg = OmegaConf.create(text)
        if not isinstance(cfg, DictConfig):
            raise ValueError("no mapping")
        return recorded(cfg)
    except (
        AssertionError,  # of OmegaConf, for a lone number
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
                f"{path} is damaged ({said or type(error).__name__}), so nobody can tell of which run this is; put back a copy, "
                "give this run a folder of its own (name=...), or put that one aside (fresh=true)"
            ]
        ) from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Keys whose values differ, as ``loss.clip_high: 0.2 there, 0.3 here``."""
    there, here = flat(old), flat(new)
    lines = [
        f"{key}: {there.get(key, _ABSENT)} there, {here.get(key, _ABSENT)} here"
        for key in sorted(there.keys() | here.keys())
        if there.get(key, _ABSENT) != here.get(key, _ABSENT)
    ]
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more"]


def fault_of_result(folder: Path) -> str | None:
    """Why ``result.json`` does not say that the run is done; empty where there is none, None where it does."""
    try:
        path = folder / RESULT
        if not os.path.lexists(path):
            return ""
        if not path.is_file():
            return "no regular file"
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return f"damaged ({type(error).__name__})"
    missing = _OF_A_RESULT - set(found) if isinstance(found, dict) else _OF_A_RESULT
    return f"no result, for it lacks {', '.join(sorted(missing))}" if missing else None
