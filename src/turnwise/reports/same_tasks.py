"""Checks whether compared runs were evaluated on the same tasks, and with the same sampling."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.reports.find_runs import FinishedRuns, RunRow

TASKS = (
    "env.",
    "eval.tasks",
    "eval.attempts",
    "eval.items",
    "eval.seed",
    "data.held_out",
)  # configuration keys, or prefixes of keys, that decide which tasks are evaluated and how often
SAMPLING = ("rollout.sampling.",)  # keys that decide how an evaluation samples
MOST = 4  # largest number of keys that a note names


def task_notes(collection: FinishedRuns) -> list[str]:
    """Returns notes on differences between the tasks of the runs."""
    notes = []
    worlds = sorted({env for env, _ in collection.sections})
    if len(worlds) > 1:
        notes.append(
            f"These runs use different environments ({', '.join(worlds)}). Compare only runs in the same table."
        )
    for (env, scale), rows in collection.sections.items():
        if differing := _differing(rows, TASKS):
            said = "; ".join(differing[:MOST]) + (
                f"; and {len(differing) - MOST} more" if len(differing) > MOST else ""
            )
            notes.append(
                f"The tasks of these runs differ, so that their success cannot be compared ({env}, {scale}): {said}."
            )
        sampled = [row for row in rows if row.config.get("eval.attempts") != 0]
        if differing := _differing(sampled, SAMPLING):
            notes.append(
                f"The evaluations of these runs sample differently, so that already their base policies have "
                f"different success ({env}, {scale}): {'; '.join(differing)}. Compare the greedy success in `result.json`."
            )
    return notes


def _differing(rows: Sequence[RunRow], decisive: tuple[str, ...]) -> list[str]:
    """Returns a text for each key that differs between rows, with its values and their rows. ``decisive`` holds keys, or
    prefixes of keys.
    """
    known = [row for row in rows if row.config]
    keys = sorted({key for row in known for key in row.config if key.startswith(decisive)})
    found = []
    for key in keys:
        values: dict[str, list[str]] = {}
        for row in known:
            values.setdefault(str(row.config.get(key, "not set")), []).append(row.name)
        if len(values) > 1:
            found.append(f"{key} is " + ", ".join(f"{value} in {_few(names)}" for value, names in values.items()))
    return found


def _few(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 4 else f"{names[0]}, {names[1]} and {len(names) - 2} more"
