"""Reads the results that the authors of Selective Rollout released (github.com/zhiyuanZhai20/selective-rollout)."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from turnwise.algo.gates.gate import SIGNALS, TERMINATION
from turnwise.errors import InputError
from turnwise.reports.gates.recorded_groups import LABELS, Buffer, Group

FEATURES = "hybrid_gate_features.csv"  # one row per (task, K) with the signals, label and reward variance of a group
WALLCLOCK = "wallclock_ab.csv"  # tier 1, one row per (task, baseline or gated)
TRAINING = ("mechanism_baseline_per_iter.csv", "mechanism_gated_per_iter.csv")  # tier 3, one row per (seed, iteration)
GROUP_SIZE, HORIZON = 8, 30  # known from the paper alone (section 3.1); the horizon is in turns

Row = Mapping[str, str]


def is_released(folder: Path) -> bool:
    return (folder / FEATURES).is_file()


def read_features(folder: Path) -> Buffer:
    """Reads the buffer of groups that the authors released. The released file lacks the lengths of rollouts, so the
    numbers of turns in the buffer are upper bounds, which assume that every rollout lasts until the horizon (tails: every
    rollout that has not ended at step K).

    Raises:
        InputError: a column is missing, a value is not a number, or the tasks are not the same at every step.
    """
    path = folder / FEATURES
    columns = ["K", "task_id", "task_type", "label", "reward_var", *SIGNALS]
    tasks: dict[str, dict[int, Row]] = defaultdict(dict)
    for number, row in enumerate(read_csv(path, columns), 2):
        if row["label"] not in LABELS:
            raise InputError(f"{path}:{number}: the label must be one of {', '.join(LABELS)}, got {row['label']!r}")
        tasks[row["task_id"]][whole_number_of(path, number, row, "K")] = row
    steps = sorted({step for rows in tasks.values() for step in rows})
    uneven = next((task for task, rows in tasks.items() if sorted(rows) != steps), None)
    if uneven is not None:
        raise InputError(f"{path}: task {uneven} has no row for some K of {steps}; every task needs a row for each K")
    groups = []
    for task, rows in tasks.items():
        first = rows[steps[0]]
        signals = {k: {name: number_of(path, 0, row, name) for name in SIGNALS} for k, row in rows.items()}
        groups.append(
            Group(
                task,
                first["label"],  # type: ignore[arg-type]
                number_of(path, 0, first, "reward_var"),
                GROUP_SIZE,
                GROUP_SIZE * HORIZON,
                signals,
                {k: GROUP_SIZE * (1 - at[TERMINATION]) * (HORIZON - k) for k, at in signals.items()},
                first["task_type"],
            )
        )
    return Buffer(tuple(groups), HORIZON, tuple(steps))


def read_csv(path: Path, columns: Sequence[str]) -> list[Row]:
    """Reads a CSV file that must have the given columns.

    Raises:
        InputError: the file cannot be read, is empty, or lacks a column.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows: list[Row] = list(reader)
            known = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: this is not a valid CSV file ({error}); download the authors' file again") from error
    missing = [name for name in columns if name not in known]
    if missing or not rows:
        what = f"lacks the columns {', '.join(missing)}" if missing else "has no row"
        raise InputError(f"{path}: {what}; download the authors' file again")
    return rows


def number_of(path: Path, line: int, row: Row, column: str) -> float:
    """Parses a cell of a CSV file as a number.

    Raises:
        InputError: the cell is not a number.
    """
    return _cell(path, line, row, column, float, "a number")


def whole_number_of(path: Path, line: int, row: Row, column: str) -> int:
    """Parses a cell of a CSV file as an integer, which may be written as 3.0.

    Raises:
        InputError: the cell is not an integer.
    """
    return int(_cell(path, line, row, column, _whole, "a whole number"))


def _whole(text: str) -> int:
    if not float(text).is_integer():
        raise ValueError(text)
    return int(float(text))


def _cell(path: Path, line: int, row: Row, column: str, read: Callable[[str], float], kind: str) -> float:
    try:
        return read(row[column])
    except (TypeError, ValueError, OverflowError) as error:
        named = ", ".join(f"{key} {row[key]}" for key in ("task_id", "seed", "iter") if key in row)
        where = f"{path}:{line}" if line else f"{path}, {named}"
        raise InputError(f"{where}: {column} is {row[column]!r}, not {kind}") from error
