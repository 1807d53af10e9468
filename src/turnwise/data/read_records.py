"""Reads files of records (JSON lines, one JSON array, or Parquet) one record at a time, each with its line number."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet

from turnwise.errors import InputError
from turnwise.files import STRICT, expanded, whole_characters

_JSON = (".jsonl", ".ndjson", ".json")

OnBytes = Callable[[int], object]
"""A function that is called with the number of bytes just read from the file, to show progress."""


class UnusableError(ValueError):
    """Raised if a record of a file cannot be used. The message is the mistake and how to correct it. ``reason`` names
    the kind of mistake in a few words, which are the same for all such records, so that they can be counted.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def need(holds: object, reason: str, message: str) -> None:
    """Raises an UnusableError unless ``holds`` is true."""
    if not holds:
        raise UnusableError(reason, message)


def read_records(name: Path, on_bytes: OnBytes | None = None) -> Iterator[tuple[str, Any]]:
    """Yields a pair ``("file:number", record)`` for every record of a file, and an UnusableError in place of a record
    that cannot be read. The number counts lines, rows of a Parquet file or items of a JSON array from 1.

    Raises:
        InputError: the file is missing, cannot be read, or has an unknown ending; or a JSON array is broken, so that
            the items after the mistake cannot be read.
    """
    count = on_bytes or (lambda size: None)
    if name.suffix not in (*_JSON, ".parquet"):
        raise InputError(
            f"{name}: files that end in {name.suffix!r} cannot be read; use {', '.join(_JSON)} (JSON) or .parquet"
        )
    path = expanded(name)
    try:
        if name.suffix == ".parquet":
            records = _rows(path, count)
        else:
            records = _json_records(path, count)
        for number, record in enumerate(records, start=1):
            yield f"{name}:{number}", record
    except FileNotFoundError as error:
        raise InputError(f"{name}: no such file; the current folder is {Path.cwd()}") from error
    except (OSError, RecursionError, ValueError, pyarrow.ArrowException) as error:
        raise InputError(f"{name}: cannot be read ({error}); correct the file") from error


def _rows(path: Path, on_bytes: OnBytes) -> Iterator[Any]:
    with pyarrow.parquet.ParquetFile(path) as file:
        size, total, row = path.stat().st_size, max(1, file.metadata.num_rows), 0
        for group in file.iter_batches(batch_size=256):
            yield from (_writable_record(_without_nulls(record)) for record in group.to_pylist())
            on_bytes(size * (row + group.num_rows) // total - size * row // total)
            row += group.num_rows


def _without_nulls(value: Any) -> Any:
    """Parquet files store null for a key that an object does not have."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _json_records(path: Path, on_bytes: OnBytes) -> Iterator[Any]:
    with path.open("rb") as file:
        if path.suffix == ".json" and _is_array(file):
            data = file.read()
            on_bytes(len(data))
            yield from map(_writable_record, STRICT.decode(data.decode("utf-8-sig")))
        for line in file:
            on_bytes(len(line))
            yield _parsed_record(line)


def _is_array(file: BinaryIO) -> bool:
    start = file.read(1 << 16).removeprefix(codecs.BOM_UTF8).lstrip()
    file.seek(0)
    return start.startswith(b"[")  # a record in JSON lines begins with {


def _parsed_record(line: bytes) -> Any:
    if not line.strip():
        return UnusableError("empty line", "the line is empty; remove it")
    try:
        return _writable_record(STRICT.decode(line.decode("utf-8-sig")))
    except (ValueError, RecursionError) as error:
        what = f"the line contains broken JSON ({error}); write one complete JSON object per line, in UTF-8"
        return UnusableError("broken JSON", what)


def _writable_record(record: Any) -> Any:
    """Unlike JSON, Parquet has dates and bytes, and both can hold infinite numbers and halves of surrogate pairs."""
    try:
        return whole_characters(record)
    except (TypeError, ValueError) as error:
        return UnusableError(
            "no JSON value", f"the record has a value that JSON cannot represent ({error}); correct it"
        )


def record_id(source: str) -> str:
    """Returns the id of the row at ``source``. For example, ``data/rows.jsonl:3`` gives ``rows:3``."""
    path, _, line = source.rpartition(":")
    return f"{Path(path).stem}:{line}"
