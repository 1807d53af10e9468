"""Reads and writes the JSON-lines files of a run one line at a time, because a long file may not fit into memory."""

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
    """Yields the records of a JSON-lines file. Damaged lines are skipped, and one warning gives their number.

    A line is damaged if it is not a JSON object or lacks the key ``iteration``. A damaged last line gets no warning,
    because a killed run may leave its last line incomplete.
    """
    if not path.exists():
        return
    damaged, first, at_end = 0, 0, False  # count of damaged lines, number of the first, whether the last one is damaged
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            row = json_object(line)
            at_end = row is None or "iteration" not in row
            if row is not None and not at_end:
                yield row
            else:
                damaged, first = damaged + 1, first or number
    if damaged > at_end:
        logger.warning("%s: %d damaged lines were skipped; the first of them is line %d", path, damaged - at_end, first)


def text_lines(path: Path) -> Iterator[str]:
    """Yields the lines of ``path``, or nothing if there is no such file.

    Raises:
        InputError: the file cannot be read or decoded.
    """
    if not path.exists():
        return
    try:
        with path.open(encoding="utf-8") as stream:
            yield from stream
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}); restore the file") from error


def checked_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields, for each line of a JSON-lines file, its position as ``file:line`` and its record. Blank lines are
    skipped.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object.
    """
    for number, line in enumerate(text_lines(path), 1):
        row = json_object(line)
        if row is not None:
            yield f"{path}:{number}", row
        elif line.strip():
            raise InputError(
                f"{path}:{number}: this line is not a JSON object; remove it if it is incomplete, or repeat the run"
            )


def checked_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a JSON-lines file, like :func:`checked_lines`, but decodes the whole file at once. This is
    faster, but the file must fit into memory.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object.
    """
    if not path.exists():
        return []
    try:
        lines = [line for line in path.read_bytes().decode().split("\n") if line.strip()]
        rows = json.loads(f"[{','.join(lines)}]")
        if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows):
            return rows
    except (OSError, ValueError, RecursionError):
        pass
    return [row for _, row in checked_lines(path)]  # slower, but the error names the line and the problem


def cut_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Removes from a JSON-lines file the records for which ``keep`` returns False, and all damaged lines."""
    if not path.exists():
        return
    with atomic_write(path) as part, part.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in each_line(path) if keep(row))


def paths_of(turns: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Returns, for each leaf of a recorded rollout tree, the indices of the turns from the root to the leaf.

    Raises:
        ValueError: a turn comes before its parent.
    """
    parents = [turn["parent"] for turn in turns]
    if strange := [turn for turn, parent in enumerate(parents) if not parent < turn]:
        raise ValueError(f"turn {strange[0]} comes before its parent")
    paths = []
    for leaf in sorted(set(range(len(turns))) - set(parents)):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        paths.append(path[::-1])
    return paths
