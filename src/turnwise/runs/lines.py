"""Reads and writes the JSON lines of a run one at a time, because a long run leaves more of them than fit into memory."""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise.files import append, atomic_write

logger = logging.getLogger(__name__)

ZIPPED = ".gz"  # end of the name of a file of a kept run (runs/keep.py)


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    append(path, "".join(json.dumps(row) + "\n" for row in rows))


def json_object(line: str | bytes) -> dict[str, Any] | None:
    """Returns the JSON object in ``line``, or None if there is none, as in the torn last line of a killed run."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def each_line(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a file; an incomplete last line is skipped silently, damaged lines with a warning."""
    if not path.exists():
        return
    damaged = 0  # number of the previous line if it was damaged; a damaged last line gives no warning
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if damaged:
                logger.warning("%s: line %d is damaged and skipped", path, damaged)
                damaged = 0
            row = json_object(line)
            if row is not None and "iteration" in row:
                yield row
            else:
                damaged = number


def text_file(path: Path) -> Path | None:
    """Returns ``path`` or, if only its compressed copy ``path.gz`` exists, that; None if neither exists."""
    return next((file for file in (path, path.with_name(path.name + ZIPPED)) if file.exists()), None)


def text_lines(path: Path) -> Iterator[str]:
    """Yields the lines of ``path`` or, if only its compressed copy ``path.gz`` exists, of that; none if neither exists.

    Raises:
        InputError: the file cannot be read, decompressed or decoded.
    """
    found = text_file(path)
    if found is None:
        return
    try:
        with (
            gzip.open(found, "rt", encoding="utf-8")
            if found.suffix == ZIPPED
            else found.open(encoding="utf-8") as stream
        ):
            yield from stream
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{found}: cannot be read as text ({error}); restore the file") from error


def checked_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``file:line`` and the record of each line of :func:`text_lines`, without blank lines.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object.
    """
    for number, line in enumerate(text_lines(path), 1):
        row = json_object(line)
        if row is not None:
            yield f"{path}:{number}", row
        elif line.strip():
            raise InputError(f"{path}:{number}: not a JSON object; remove the line if it is torn, or run again")


def checked_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the records of :func:`checked_lines`, decoded together, which is faster for a file that fits into memory.

    Raises:
        InputError: as :func:`checked_lines`.
    """
    found = text_file(path)
    if found is None:
        return []
    try:
        content = found.read_bytes()
        text = (gzip.decompress(content) if found.suffix == ZIPPED else content).decode()
        lines = [line for line in text.split("\n") if line.strip()]
        rows = json.loads(f"[{','.join(lines)}]")
        if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows):
            return rows
    except (OSError, EOFError, ValueError, RecursionError, zlib.error):
        pass
    return [row for _, row in checked_lines(path)]  # slower, but its error names the line and the problem


def cut_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Removes the lines for which ``keep`` returns False, and a torn last line."""
    if not path.exists():
        return
    with atomic_write(path) as part, part.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in each_line(path) if keep(row))
