"""Measured run times of the six methods with default settings, from ``benchmarks/by_name.py``."""

from __future__ import annotations

import json
from importlib.resources import files

from omegaconf import DictConfig, OmegaConf

from turnwise.runs.identity import config_hash

FILE = "durations.json"  # in this package; {"machine": ..., "minutes": {configuration hash at seed 0: minutes}}


def duration_line(cfg: DictConfig) -> str | None:
    """Returns a line with the measured time of a run with this configuration and any seed, or None if there is none."""
    measured = json.loads((files("turnwise.training") / FILE).read_text(encoding="utf-8"))
    minutes = measured["minutes"].get(hash_at_seed_0(cfg))
    if minutes is None:
        return None
    return f"The whole run takes about {max(round(minutes), 1)} min on {measured['machine']}."


def hash_at_seed_0(cfg: DictConfig) -> str:
    """Returns the configuration's hash with ``seed=0``, because a run's time does not depend on its seed."""
    return config_hash(OmegaConf.merge(cfg, {"seed": 0}))  # type: ignore[arg-type]
