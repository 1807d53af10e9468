"""Reads, checks, appends to and cuts the JSON-lines files of a run."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise.files import atomic_write, writing

logger = logging.getLogger(__name__)


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    append_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def append_text(path: Path, text: str) -> None:
    """Appends lines to a file, either all of them or none (OSError, with ``path`` as its ``filename``). If the last line has
    no line break, for example because a process was killed while it wrote, one is added first.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as stream:
            size = stream.seek(0, os.SEEK_END)
            if size:
                stream.seek(size - 1)
                text = text if stream.read(1) == b"\n" else "\n" + text
            rest = memoryview(text.encode())
            try:
                while rest:
                    rest = rest[stream.write(rest) :]
                # force the lines to the disk: otherwise a power failure could lose lines that a saved checkpoint needs
                os.fsync(stream.fileno())
            except OSError:
                with suppress(OSError):
                    stream.truncate(size)
                raise


def json_object(line: str | bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def parsed_lines(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """Yields number (from 1), text and JSON object of each line, None in place of what is no object; nothing without a file."""
    if path.exists():
        with path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                yield number, line, json_object(line)


def each_line(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a JSON-lines file. Lines that are not JSON objects or lack the key ``iteration`` are skipped
    with a warning; a killed run may leave its last line incomplete.
    """
    for number, line, row in parsed_lines(path):
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
    try:
        for number, line, row in parsed_lines(path):
            if row is not None:
                yield f"{path}:{number}", row
            elif line.strip():
                why = "remove it if it is incomplete, or repeat the run"
                raise InputError(f"{path}:{number}: this line is not a JSON object; {why}")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error}); restore the file") from error


def noted_lines(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yields each record of a file. Unreadable lines are counted in a note."""
    torn = 0
    for _, line, row in parsed_lines(path):
        if row is not None:
            yield row
        torn += row is None and bool(line.strip())
    if torn:
        notes.append(
            f"{path.name}: {torn} unreadable line{'s' * (torn > 1)} left out; an interrupted run may write such a line."
        )


def cut_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Removes from a JSON-lines file the records for which ``keep`` returns False, and all damaged lines."""
    if not path.exists():
        return
    with atomic_write(path) as part, part.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in each_line(path) if keep(row))


def raw_lines(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as stream:
            yield from stream
