"""Reads what a run left in its folder, as far as its files exist."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.files import parse_yaml
from turnwise.methods.states import STD_TOLERANCE
from turnwise.runs.archive import opened
from turnwise.runs.json_lines import noted_lines
from turnwise.runs.result_file import Result, ResultError, read_result


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of all demonstrated turns: rewards of the actions that the policy sampled at each turn."""

    mean: np.ndarray  # (states,) mean reward
    variance: np.ndarray  # (states,) population variance of the rewards
    kept: np.ndarray  # (states,) bool: whether PivotRL's filter kept the turn
    samples: int  # number of sampled actions at each state

    @property
    def mixed(self) -> np.ndarray:
        """(states,) bool: whether the rewards at a turn differ. Turns with equal rewards give no gradient."""
        return self.variance > STD_TOLERANCE**2


@dataclass(slots=True)
class RunFiles:
    """All data of one run folder that its page shows."""

    folder: Path
    result: Result | None = None
    config: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    metrics: dict[str, dict[int, float]] = field(default_factory=dict)  # key -> iteration -> value
    profile: Profile | None = None
    notes: list[str] = field(default_factory=list)  # what could not be read

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """The sorted iterations and the values of a metric, both (n,); both empty if it was not logged."""
        points = sorted(self.metrics.get(key, {}).items())
        return np.array([i for i, _ in points], dtype=int), np.array([v for _, v in points], dtype=float)


def read_run(folder: Path | str) -> RunFiles:
    folder = opened(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: this folder does not exist; give the folder of a run")
    run = RunFiles(folder)
    try:
        run.result = read_result(folder)
    except ResultError as error:
        run.notes.append(str(error).replace(f"{folder}/", ""))  # a page must not show paths of this machine
    try:
        run.config_text = (folder / "config.yaml").read_text(encoding="utf-8", errors="replace")
        run.config = dict(parse_yaml(run.config_text))
    except (OSError, ValueError, TypeError) as error:
        run.notes.append(f"config.yaml: the configuration cannot be read ({type(error).__name__}).")
    for row in noted_lines(folder / "metrics.jsonl", run.notes):
        iteration = row.get("iteration")
        if not isinstance(iteration, int):
            continue
        for key, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
                run.metrics.setdefault(key, {})[iteration] = float(value)  # a later line replaces an earlier one
    run.profile = _profile(folder / "profile.parquet", run.notes)
    return run


def _profile(path: Path, notes: list[str]) -> Profile | None:
    if not path.is_file():
        return None
    import pyarrow.parquet as pq  # slow to import, and only runs with a profile have such a file

    try:
        with pq.ParquetFile(path) as file:
            table = file.read(columns=["mean", "variance", "kept"])
            if not table.num_rows:
                return None
            first = next(file.iter_batches(64, columns=["rewards"]))
    except (OSError, ValueError, KeyError) as error:
        notes.append(f"{path.name}: this file cannot be read, so the report shows no profile ({error}).")
        return None
    mean, variance, kept = (table[name].to_numpy() for name in ("mean", "variance", "kept"))
    return Profile(mean, variance, kept.astype(bool), max(len(r.as_py() or ()) for r in first["rewards"]))
