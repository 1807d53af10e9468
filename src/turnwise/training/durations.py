"""Looks up how long a run takes. ``benchmarks/by_name.py`` measured the durations of runs with default settings."""

from __future__ import annotations

import json
from importlib.resources import files

from omegaconf import DictConfig, OmegaConf

from turnwise.runs.config_hash import config_hash

FILE = "durations.json"  # in this package; {"machine": ..., "minutes": {configuration hash at seed 0: minutes}}


def duration_line(cfg: DictConfig) -> str | None:
    """Returns a line that tells how long a run with this configuration takes, for any seed, or None if the duration was
    not measured.
    """
    measured = json.loads((files("turnwise.training") / FILE).read_text(encoding="utf-8"))
    minutes = measured["minutes"].get(hash_at_seed_0(cfg))
    if minutes is None:
        return None
    return f"The whole run takes about {max(round(minutes), 1)} min on {measured['machine']}."


def hash_at_seed_0(cfg: DictConfig) -> str:
    """Returns the hash of the configuration with ``seed=0``. The duration of a run does not depend on its seed."""
    return config_hash(OmegaConf.merge(cfg, {"seed": 0}))  # type: ignore[arg-type]
