"""Computes from the authors' released logs how much the gate of Selective Rollout saves: tier 1 (sampling without and
with the gate, Table 3) and tier 3 (training without and with the gate, Table 5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.errors import InputError
from turnwise.evaluation.stats import mean_interval
from turnwise.reports.gates.cut_counts import counts
from turnwise.reports.gates.recorded_groups import TOLERANCE
from turnwise.reports.gates.recorded_savings import saved_between
from turnwise.reports.gates.released import TRAINING, WALLCLOCK, Row, number_of, read_csv, whole_number_of
from turnwise.reports.gates.resample import intervals


def read_tier1(folder: Path, resamples: int, seed: int) -> dict[str, Any] | None:
    """Returns T3 (Table 3 of the paper) from the authors' data: the wall-clock seconds of tasks in two arms, without
    and with the gate. Returns None if the file is missing.

    A cut is correct if the group has equal rewards in the arm without the gate, where it ran to its end.
    ``matched_pct`` is the percentage of groups whose number of turns and mean reward are equal in both arms, among the
    groups that the gate did not cut. With equal random draws in both arms, it would be 100.

    Raises:
        InputError: the file lacks a column, or an arm lacks a task.
    """
    path = folder / WALLCLOCK
    if not path.is_file():
        return None
    columns = ["task_id", "label", "wall_time_sec", "step_tokens", "rewards_mean", "rewards_var", "gate_cut"]
    arms: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in read_csv(path, columns):
        arms[row["label"]][row["task_id"]] = row
    if set(arms) != {"baseline", "gated"} or set(arms["baseline"]) != set(arms["gated"]):
        raise InputError(
            f"{path}: the labels baseline and gated must have the same tasks; the labels are {sorted(arms)}"
        )
    tasks = list(arms["baseline"])

    def column(arm: str, name: str) -> np.ndarray:
        return np.array([number_of(path, 0, arms[arm][task], name) for task in tasks])

    seconds = [column("baseline", "wall_time_sec"), column("gated", "wall_time_sec")]
    turns = [column("baseline", "step_tokens"), column("gated", "step_tokens")]
    rewards = [column("baseline", "rewards_mean"), column("gated", "rewards_mean")]
    cut = column("gated", "gate_cut") > 0
    same = (turns[0] == turns[1]) & (rewards[0] == rewards[1])
    (interval,) = intervals(saved_between, seconds, resamples, seed)
    return {
        "unit": "seconds",
        "measured": True,
        "groups": len(tasks),
        "saved_pct": float(saved_between(*seconds)[0]),
        "ci95": interval,
        "baseline": float(seconds[0].sum()),
        "gated": float(seconds[1].sum()),
        "turns_saved_pct": float(saved_between(*turns)[0]),
        "matched_pct": float(100 * same[~cut].mean()) if (~cut).any() else None,
        **counts(cut, column("baseline", "rewards_var") <= TOLERANCE**2),
    }


def read_tier3(folder: Path, resamples: int, seed: int) -> dict[str, Any] | None:
    """Returns T5 (Table 5 of the paper) from the authors' training logs of two arms, without the gate (baseline) and
    with the gate (gated). Returns None if the logs are missing.

    Means are over seeds; keys that end in ``_std`` hold the sample standard deviation. ``zero_advantage_pct`` is the
    percentage of groups in a batch whose rewards are equal, as a mean over iterations; in the gated arm, cut groups are
    not counted. ``as_released`` is another value for the gated arm, the mean of the authors' column ``dilution_pct``.
    Each of the two values predicts by how much the gate increases the gradient norm (``grad_amplification``), if
    dilution by groups with equal rewards is the only cause: (1 - gated) / (1 - baseline) (paper, section 4.4).

    Raises:
        InputError: a log lacks a column, or the arms differ in their seeds.
    """
    paths = [folder / name for name in TRAINING]
    if not all(path.is_file() for path in paths):
        return None
    baseline, gated = (_by_seed(path) for path in paths)
    if set(baseline) != set(gated):
        raise InputError(
            f"{paths[1]}: the seeds {sorted(gated)} differ from the seeds {sorted(baseline)} of {paths[0].name}; "
            "download the authors' files again"
        )
    seeds = sorted(baseline)
    seconds = [np.array([arm[s]["iter_secs"].sum() for s in seeds]) for arm in (baseline, gated)]
    norms = [np.array([arm[s]["grad_norm"].mean() for s in seeds]) for arm in (baseline, gated)]
    cut = np.array([gated[s]["n_groups_cut"].sum() for s in seeds])
    saved, amplified = 100 * (1 - seconds[1] / seconds[0]), norms[1] / norms[0]
    (interval,) = intervals(lambda x: x.mean(-1, keepdims=True), [saved], resamples, seed)
    estimate = mean_interval(saved)
    zero = {
        "baseline": 100 * float(np.mean([_same(baseline[s]).mean() for s in seeds])),
        "gated": 100 * float(np.mean([_same(gated[s]).mean() for s in seeds])),
        "as_released": float(np.mean([gated[s]["dilution_pct"].mean() for s in seeds])),
    }
    return {
        "seeds": seeds,
        "saved_pct": float(saved.mean()),
        "saved_pct_std": _std(saved),
        "ci95": interval,
        "ci95_t": None if estimate.low is None else [estimate.low, estimate.high],
        "saved_pct_by_seed": saved.tolist(),
        "baseline_s": float(seconds[0].mean()),
        "baseline_s_std": _std(seconds[0]),
        "gated_s": float(seconds[1].mean()),
        "gated_s_std": _std(seconds[1]),
        "cut": float(cut.mean()),
        "cut_std": _std(cut),
        "groups": float(np.mean([gated[s]["n_groups"].sum() for s in seeds])),
        "grad_norm": {"baseline": float(norms[0].mean()), "gated": float(norms[1].mean())},
        "grad_norm_std": {"baseline": _std(norms[0]), "gated": _std(norms[1])},
        "grad_amplification": float(amplified.mean()),
        "grad_amplification_std": _std(amplified),
        "grad_amplification_by_seed": amplified.tolist(),
        "zero_advantage_pct": zero,
        "predicted_amplification": (100 - zero["gated"]) / (100 - zero["baseline"]),
        "predicted_as_released": (100 - zero["as_released"]) / (100 - zero["baseline"]),
    }


def _by_seed(path: Path) -> dict[int, dict[str, np.ndarray]]:
    """Reads a released training log (tier 3). Returns seed -> column -> values, one per iteration."""
    columns = ["n_groups", "n_groups_cut", "n_zero_variance", "grad_norm", "iter_secs", "dilution_pct"]
    rows: dict[int, list[Row]] = defaultdict(list)
    for number, row in enumerate(read_csv(path, ["seed", *columns]), 2):
        rows[whole_number_of(path, number, row, "seed")].append(row)
    return {
        seed: {name: np.array([number_of(path, 0, row, name) for row in of_seed]) for name in columns}
        for seed, of_seed in rows.items()
    }


def _same(log: dict[str, np.ndarray]) -> np.ndarray:
    """Returns, for each iteration, the fraction of groups with equal rewards among the groups that were not cut. The
    cut groups are subtracted, because the logs count them too: the rewards of truncated rollouts are nearly always 0.
    """
    left = log["n_groups"] - log["n_groups_cut"]
    return np.maximum(log["n_zero_variance"] - log["n_groups_cut"], 0) / np.maximum(left, 1)


def _std(values: Sequence[float] | np.ndarray) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
