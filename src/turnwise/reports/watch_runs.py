"""Shows runs in progress in the terminal, as a table that is updated until all runs have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.live import Live
from rich.table import Table

from turnwise.console import Terminal
from turnwise.reports.metric_labels import success_keys
from turnwise.reports.sentences import result_verdict, short
from turnwise.runs.json_lines import json_object
from turnwise.runs.result_file import ResultError, read_result
from turnwise.runs.status_file import progress, read_status, remaining

SHOWN = {  # key of metrics.jsonl -> title of its column
    "train/reward_mean": "reward",
    "train/kl_ref": "KL to reference",
    "train/entropy": "entropy",
    "rollout/turns": "turns",
}
ACCEPTED = {"eval/held_out/functional": "held-out replies accepted, %"}  # column for runs on dialogues
TAIL = 65_536  # number of bytes at the end of metrics.jsonl that are read to find the latest rows


def watch(
    folders: Sequence[Path], console: Terminal, every: float = 1.0, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Shows the state of the runs until all have ended, and how they ended. Returns whether every run has a result."""
    with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        said: dict[Path, str] = {}
        while True:
            states = {folder: state(folder) for folder in folders}
            if console.is_terminal:
                live.update(table(states), refresh=True)
            else:  # without a live display, one line is printed whenever a run progresses
                for folder, (standing, left, _) in states.items():
                    if said.get(folder) != standing:
                        said[folder] = standing
                        console.print(
                            f"{folder}: {', '.join(filter(None, [standing, left]))}", highlight=False, soft_wrap=True
                        )
            if not any(running for *_, running in states.values()):
                break
            sleep(every)
    ends = [_end(folder, states[folder][0]) for folder in folders]
    console.print(*(line for line, _ in ends), sep="\n", soft_wrap=True)
    return all(finished for _, finished in ends)


State = tuple[str, str, bool]
"""The state of a run: its progress and the remaining time as text, and whether the run is still running."""


def state(folder: Path) -> State:
    if (folder / "result.json").exists():
        return "finished", "", False
    status = read_status(folder)
    if status is None:
        return "no status: the run has not started, or its folder was written by an older version", "", False
    standing = progress(status)
    return (standing, remaining(status), True) if status.running else (f"{status.state} while {standing}", "", False)


def table(states: dict[Path, State]) -> Table:
    shown = Table(box=SIMPLE_HEAD)
    newest = {folder: newest_metrics(folder) for folder in states}
    keys = [key for key in SHOWN if any(key in found for found in newest.values())]
    solved = {
        key: f"{split} solved{', greedy' * key.endswith('_greedy')}, %"
        for found in newest.values()
        for split, key in success_keys(found).items()
    }
    solved |= {key: name for key, name in ACCEPTED.items() if any(key in found for found in newest.values())}
    named = [solved[key] for key in sorted(solved)]
    for header in ("run", "standing", "time left", *named):
        shown.add_column(header, overflow="fold")
    for key in keys:
        shown.add_column(SHOWN[key], justify="right")
    for folder, (standing, left, _) in states.items():
        cells = [short(newest[folder].get(key)) for key in (*sorted(solved), *keys)]
        shown.add_row(str(folder), standing, left, *cells)
    return shown


def newest_metrics(folder: Path) -> dict[str, float]:
    """Returns the last value of each metric in the last ``TAIL`` bytes of ``metrics.jsonl``."""
    found: dict[str, float] = {}
    try:
        with (folder / "metrics.jsonl").open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - TAIL))
            lines = stream.read().splitlines()
    except OSError:
        return found
    for line in lines:
        if row := json_object(line):
            found |= {key: float(value) for key, value in row.items() if isinstance(value, int | float)}
    wanted = [key for key in found if key in SHOWN or (key.startswith("eval/") and key.count("/") == 2)]
    return {key: found[key] for key in wanted}


def _end(folder: Path, standing: str) -> tuple[str, bool]:
    try:
        return f"{folder}: {result_verdict(read_result(folder)).sentence}", True
    except ResultError:
        status = read_status(folder)
        why = f" ({status.why})" if status and status.why else ""
        command = f"; continue it with: {status.command}" if status and status.command else ""
        return f"{folder}: {standing}{why}{command}", False
