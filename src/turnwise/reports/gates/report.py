"""Computes the gate report, a JSON object, from recorded rollouts or from the released results of Selective Rollout."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from turnwise.algo.gates.gate import DISTANCE
from turnwise.errors import InputError
from turnwise.files import written
from turnwise.reports.gates import tuning
from turnwise.reports.gates.offline_tables import (
    THRESHOLDS,
    labels_table,
    peak_row,
    regime_row,
    signals_table,
    thresholds_table,
    types_table,
)
from turnwise.reports.gates.paper_numbers import compare
from turnwise.reports.gates.recorded_groups import Buffer, read_recorded, recordings
from turnwise.reports.gates.recorded_savings import read_arms, replayed_savings
from turnwise.reports.gates.released import FEATURES, is_released, read_features
from turnwise.reports.gates.released_savings import read_tier1, read_tier3
from turnwise.reports.gates.sections import Sections, whole
from turnwise.reports.gates.table12 import arms_table
from turnwise.reports.gates.values_during_sampling import looks_table


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the gate report.

    Attributes:
        k, threshold, ended: the gate decides after K = ``k`` turns. It stops a group if d_K, the mean edit distance
            between the first K actions of its rollouts, is below ``threshold``. The OR rule also stops a group if at
            least the fraction ``ended`` of its rollouts has ended.
        steps: values of K at which the signals are computed. Released results have their own values of K.
        thresholds: thresholds of d_K that are compared at step ``k``.
        floor: smallest precision that a tuned gate may have. Precision is the fraction of stopped groups that would
            have ended with equal rewards.
        horizon: largest possible length of a recorded rollout in turns (T_max). None: the length of the longest
            rollout.
        resamples, seed: number of bootstrap resamples, and seed of the random draws.
    """

    k: int = 10
    threshold: float = 0.12
    ended: float = 0.9
    steps: tuple[int, ...] = (5, 10, 15, 20)
    thresholds: tuple[float, ...] = THRESHOLDS
    floor: float = 0.8
    horizon: int | None = None
    resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.k < 1 or not self.steps or min(self.steps) < 1:
            raise ValueError(f"k and steps must be at least 1, got {self.k} and {self.steps}")
        for name in ("threshold", "ended", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a share in [0, 1], got {getattr(self, name)}")
        if not self.thresholds or not all(0 <= threshold <= 1 for threshold in self.thresholds):
            raise ValueError(f"thresholds must be shares in [0, 1], got {self.thresholds}")
        if self.resamples < 1:
            raise ValueError(f"resamples must be at least 1, got {self.resamples}")
        if self.horizon is not None and self.horizon < 2:
            raise ValueError(f"horizon must be at least 2 turns, got {self.horizon}")


def gate_report(data: Path, settings: Settings, gated: Path | None = None) -> dict[str, Any]:
    """Returns the report on ``data``: a file of recorded rollouts, the folder of a run or of its seeds, or the folder
    with the authors' released results.

    ``gated`` is a path to runs that have a gate and otherwise the settings of the runs of ``data``. The saving of the
    gate is then measured by comparing both (``turnwise.reports.gates.recorded_savings``).

    Raises:
        InputError: ``data`` does not exist or cannot be used.
    """
    return whole(gate_sections(data, settings, gated))


def gate_sections(data: Path, settings: Settings, gated: Path | None = None) -> Sections:
    """Returns the report of :func:`gate_report`, whose sections are only computed when they are first read."""
    released = is_released(data)
    buffer = read_features(data) if released else _recorded(data, settings)
    if settings.k not in buffer.steps:
        raise InputError(
            f"k={settings.k}: {data} contains signals only at K = {', '.join(map(str, buffer.steps))}; choose one of them"
            + ("" if released else f" (the longest rollout has {buffer.horizon} turns)")
        )
    k, seed, resamples = settings.k, settings.seed, settings.resamples
    tiers = (read_tier1(data, resamples, seed), read_tier3(data, resamples, seed)) if released else (None, None)
    saved = read_arms(data, gated, resamples, seed) if gated and not released else tiers[0]
    cut = buffer.values(k, DISTANCE) < settings.threshold
    printed = released and settings == Settings()
    report = Sections(
        {
            "data": lambda: str(data),
            "source": lambda: "released" if released else "recorded",
            "groups": lambda: len(buffer.groups),
            "zero_variance": lambda: int(buffer.uniform.sum()),
            "horizon": lambda: buffer.horizon,
            "left_out": lambda: dict(buffer.left_out),
            "settings": lambda: asdict(settings),
            "regime": lambda: regime_row(buffer, k, settings.threshold, resamples, seed),
            "t1": lambda: thresholds_table(buffer, k, settings.thresholds, resamples, seed),
            "t7": lambda: signals_table(buffer, resamples, seed),
            "peak": lambda: peak_row(buffer),
            "t8": lambda: types_table(buffer, k, resamples, seed),
            "t10": lambda: labels_table(buffer, 15 if 15 in buffer.steps else k, resamples, seed),
            "t12": lambda: arms_table(buffer, k, settings.threshold, settings.ended, resamples, seed),
            "looks": lambda: looks_table(buffer, resamples, seed),
            "tier1": lambda: saved if released or gated else report["replayed"],
            "tier3": lambda: tiers[1],
            "tuned": lambda: tuned(buffer, settings),
            "replayed": lambda: replayed_savings(buffer, cut, k, resamples, seed),
            "paper": lambda: [asdict(cell) for cell in compare(report)] if printed else None,
        }
    )
    return report


def _recorded(data: Path, settings: Settings) -> Buffer:
    if data.is_dir():
        paths = recordings(data)
        if not paths:
            raise InputError(
                f"data={data}: contains neither {FEATURES} (the authors' results) nor rollouts/*.jsonl (a run's folder)"
            )
    elif data.is_file():
        paths = [data]
    else:
        raise InputError(
            f"data={data}: this file or folder does not exist; give a run's rollouts/train.jsonl, or a folder"
        )
    return _read(written(paths), tuple(sorted({*settings.steps, settings.k})), settings.horizon)


@lru_cache(maxsize=4)
def _read(known: tuple[tuple[Path, int, int, int], ...], steps: tuple[int, ...], horizon: int | None) -> Buffer:
    """Reads recorded groups. The result is cached until a file changes, because several tables and figures use it."""
    return read_recorded([path for path, *_ in known], steps, horizon)


def tuned(buffer: Buffer, settings: Settings) -> dict[str, Any]:
    """Returns gates whose thresholds are tuned on the buffer, with a precision of at least ``settings.floor``: one gate
    for each step (``by_k``), the best of these gates (``fixed``), and a gate that decides at several steps
    (``sequential``). ``fixed`` and ``sequential`` are also evaluated by cross-validation. All results are given twice:
    in ``live``, cuts are counted as a running gate makes them, and in ``all`` as the tables of the paper count them
    (``turnwise.reports.gates.tuning``).

    Two more numbers are about the gate with ``settings.k`` and ``settings.threshold``, which is not tuned.
    ``useful_lost_pct`` is the percentage of the useful groups (whose rewards differ) that this gate cuts.
    ``floor_for_10_pct`` is the smallest precision with which a gate with equally many cuts loses at most 10 % of the
    useful groups (App. C.5 of the paper).
    """
    cut = buffer.values(settings.k, DISTANCE) < settings.threshold
    useful = int((~buffer.uniform).sum())
    return {
        "floor": settings.floor,
        "useful_lost_pct": 100 * int((cut & ~buffer.uniform).sum()) / useful if useful else None,
        "floor_for_10_pct": tuning.precision_floor(0.1, useful, int(cut.sum())),
        "live": _tuned(buffer, settings.floor, settings.seed, live=True),
        "all": _tuned(buffer, settings.floor, settings.seed, live=False),
    }


def _tuned(buffer: Buffer, floor: float, seed: int, live: bool) -> dict[str, Any]:
    def best(part: Buffer) -> tuning.Schedule | None:
        found = [s for k in part.steps if (s := tuning.fixed(part, k, floor, live)) is not None]
        return max(found, key=lambda s: tuning.score(part, s, live).saved_pct, default=None)

    def several(part: Buffer) -> tuning.Schedule | None:
        return tuning.sequential(part, part.steps, floor, live)

    def scored(schedule: tuning.Schedule | None) -> dict[str, Any] | None:
        return None if schedule is None else asdict(schedule) | _numbers(tuning.score(buffer, schedule, live))

    def held_out(fit: tuning.Fit) -> dict[str, Any]:
        return _numbers(tuning.cross_validated(buffer, fit, seed, live=live))

    return {
        "by_k": {str(k): scored(tuning.fixed(buffer, k, floor, live)) for k in buffer.steps},
        "fixed": scored(best(buffer)),
        "fixed_held_out": held_out(best),
        "sequential": scored(several(buffer)),
        "sequential_held_out": held_out(several),
    }


def _numbers(score: tuning.Score) -> dict[str, Any]:
    return asdict(score) | {"precision": score.precision}
