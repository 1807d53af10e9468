"""Reads, checks, appends to and cuts the JSON-lines files of a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise.files import append, atomic_write

logger = logging.getLogger(__name__)


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    append(path, "".join(json.dumps(row) + "\n" for row in rows))


def json_object(line: str | bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def each_line(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a JSON-lines file. Lines that are not JSON objects or lack the key ``iteration`` are skipped
    with a warning; a killed run may leave its last line incomplete.
    """
    if not path.exists():
        return
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            row = json_object(line)
            if row is not None and "iteration" in row:
                yield row
            elif line.endswith(b"\n"):
                logger.warning("%s:%d: this line is damaged and is left out", path, number)


def checked_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields, for each line of a JSON-lines file that exists, its position as ``file:line`` and its record. Blank lines
    are skipped.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object.
    """
    if not path.exists():
        return
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if (row := json_object(line)) is not None:
                    yield f"{path}:{number}", row
                elif line.strip():
                    why = "remove it if it is incomplete, or repeat the run"
                    raise InputError(f"{path}:{number}: this line is not a JSON object; {why}")
    except (OSError, UnicodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}); restore the file") from error


def cut_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Removes from a JSON-lines file the records for which ``keep`` returns False, and all damaged lines."""
    if not path.exists():
        return
    with atomic_write(path) as part, part.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in each_line(path) if keep(row))
