"""The records of a run as JSON lines, one at a time: a long run leaves more of them than should be in memory at once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.files import append, atomic_write

logger = logging.getLogger(__name__)


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    append(path, "".join(json.dumps(row) + "\n" for row in rows))


def each_line(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file of JSON lines; what a kill tore off is left out, and damage elsewhere is told."""
    if not path.exists():
        return
    damaged = 0  # number of the line before, where it was; as the last one it would be torn off
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if damaged:
                logger.warning("%s: line %d is damaged and left out", path, damaged)
                damaged = 0
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict) and "iteration" in row:
                yield row
            else:
                damaged = number


def cut_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Leave out the lines that ``keep`` refuses, and a torn last one."""
    if not path.exists():
        return
    with atomic_write(path) as part, part.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in each_line(path) if keep(row))
