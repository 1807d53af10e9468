"""Reads and writes ``status.json``: the progress of a run, for its HTML page and for ``report.py --watch``."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from turnwise.files import atomic_write

NAME = "status.json"
PHASES = {
    "read": "reading the demonstrations",
    "evaluate base": "measuring the policy before training",
    "profile": "profiling the expert turns",
    "record": "sampling the groups that all updates train on",
    "train": "training",
    "evaluate after": "measuring the policy after training",
    "report": "writing the report",
}


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a run at one moment. Times are in seconds; an unknown time is None.

    Attributes:
        state: ``running``, ``interrupted`` (a signal ended the process) or ``failed`` (an error ended it).
        phase: a key of :data:`PHASES`.
        done, total: number of finished steps and of all steps of the phase.
        left: estimated time until the phase ends.
        before: time that earlier starts of the run took.
        began, written: when this start of the run began, and when the status was written, as Unix times.
        command: the command that started the run.
        why: first line of the error that ended the run; empty if no error ended it.
    """

    state: str = "running"
    phase: str = ""
    done: float = 0
    total: float = 0
    left: float | None = None
    before: float = 0
    began: float = 0
    written: float = 0
    command: str = ""
    why: str = ""

    @property
    def running(self) -> bool:
        return self.state == "running"


def write_status(status: Status, folder: Path) -> None:
    """Writes ``<folder>/status.json`` atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with atomic_write(folder / NAME) as part:
        part.write_text(json.dumps(asdict(status)) + "\n", encoding="utf-8")


def read_status(folder: Path) -> Status | None:
    """Returns the current status of a run, or None if it cannot be read.

    If the status is ``running`` but no process holds the lock of the run's folder, ``interrupted`` is returned.
    """
    try:
        raw: Any = dict(json.loads((folder / NAME).read_text(encoding="utf-8")))
        status = Status(**{field.name: raw[field.name] for field in fields(Status)})
        float(status.done), float(status.total), float(status.began), float(status.written)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return replace(status, state="interrupted") if status.running and not _held(folder) else status


def _held(folder: Path) -> bool:
    try:
        with folder.resolve().with_name(f".{folder.resolve().name}.lock").open() as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
    except OSError:
        pass
    return False


def spent(status: Status) -> float:
    return status.before + max(0.0, status.written - status.began)


def progress(status: Status) -> str:
    """Returns the progress in words, such as ``training, iteration 12 of 60``."""
    doing = PHASES.get(status.phase, status.phase or "starting")
    if not status.total or status.phase == "report":
        return doing
    unit = "iteration " if status.phase == "train" else ""
    return f"{doing}, {unit}{status.done:,.0f} of {status.total:,.0f}"


def remaining(status: Status) -> str:
    return "" if status.left is None else f"{about(status.left)} left"


def about(seconds: float) -> str:
    """Returns a rounded time in words, such as ``about 40 s``, ``about 8 min`` or ``about 2 h 10 min``."""
    if seconds < 55:
        return f"about {max(5, 5 * round(seconds / 5))} s"
    minutes = max(1, round(seconds / 60))
    if minutes < 90:
        return f"about {minutes} min"
    hours, rest = divmod(5 * round(minutes / 5), 60)
    return f"about {hours} h {rest:02d} min" if rest else f"about {hours} h"


HELD = "hydra.sweeper.arguments=["  # begins the argument in which a sweep holds what the user typed


def typed(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments that the user typed from those that Hydra got for a sweep, with Hydra's own ones last."""
    held = next((a for a in arguments if a.startswith(HELD)), None)
    if held is None:
        return list(arguments)
    own = [re.sub(r"\\(['$])", r"\1", part) for part in re.findall(r"'((?:\\.|[^'\\])*)'", held)]
    made = ("--multirun", "hydra/sweeper=", "hydra.sweeper.")
    return [*own, *(a for a in arguments if not a.startswith(made))]
