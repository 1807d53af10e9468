"""Reads trajectory files (JSON lines, one JSON array, or Parquet) one record at a time, each with its line number."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet

from turnwise.errors import InputError
from turnwise.files import STRICT, TwiceError

MAX_BYTES = 8 * 2**20  # largest length of a line or record in bytes; longer lines are not kept in memory
_JSON = (".jsonl", ".ndjson", ".json")
_CHUNK = 1 << 20

OnBytes = Callable[[int], None]
"""A function that is called with the number of bytes just read from the file, to show progress."""


class UnusableError(ValueError):
    """Raised if a record of a file cannot be used. ``what`` is the mistake, and ``remedy`` the way to correct it.

    ``reason`` names the kind of mistake in a few words. All records with one kind of mistake have one ``reason``, so
    that they can be counted.
    """

    def __init__(self, what: str, remedy: str, reason: str) -> None:
        super().__init__(what)
        self.what, self.remedy, self.reason = what, remedy, reason


def read_records(
    name: Path,
    limit: int = MAX_BYTES,
    key: str = "data.file",
    on_bytes: OnBytes | None = None,
    kind: str = "trajectory file",
) -> Iterator[tuple[str, Any]]:
    """Yields a pair ``("file:number", record)`` for every record of a file.

    In place of a record that cannot be read, the pair holds an UnusableError. The number counts lines, rows of a
    Parquet file, or items of a JSON array, and begins with 1. The file name is the name that the user gave.

    Args:
        name: a file of JSON lines (``.jsonl``, ``.ndjson``, ``.json``), of one JSON array (``.json``), or Parquet.
        limit: largest size of a record in bytes; it does not apply to Parquet.
        key: the option with which the user gave the file's name, for error messages.
        on_bytes: a function that shows progress (see :data:`OnBytes`).
        kind: the kind of file in words, for error messages.

    Raises:
        InputError: the file is missing, cannot be read, or has an unknown ending; or a JSON array is broken, so that
            the items after the mistake cannot be read.
    """
    try:
        path = name.expanduser().resolve()
    except (RuntimeError, ValueError) as error:  # circular links, the home of an unknown user, a name with NUL
        raise InputError(f"{name}: cannot be found ({error}); correct {key}") from error
    count = on_bytes or (lambda size: None)
    if path.is_dir():
        raise InputError(f"{name}: this is a folder; list its {kind}s in {key}")
    if path.exists() and not path.is_file():
        raise InputError(
            f"{name}: this is a pipe or a device, not a file; save its content as a {kind} and name that file in {key}"
        )
    if path.suffix != ".parquet" and path.suffix not in _JSON:
        raise InputError(
            f"{name}: files that end in {path.suffix!r} cannot be read; use {', '.join(_JSON)} (JSON) or .parquet"
        )
    try:
        if path.suffix == ".parquet":
            yield from _rows(path, name, count)
            return
        with path.open("rb") as file:
            items = _array(file, name, limit, count) if path.suffix == ".json" else None
            yield from items if items is not None else _json_lines(file, name, limit, count)
    except FileNotFoundError as error:
        raise InputError(f"{name}: no such {kind}; correct {key} (the current folder is {Path.cwd()})") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{name}: cannot be read ({error}); correct the file or {key}") from error


def without_nulls(value: Any) -> Any:
    """Returns a value without the dictionary keys that hold None, at any depth.

    Parquet files store null for a key that an object does not have.
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _rows(path: Path, name: Path, on_bytes: OnBytes) -> Iterator[tuple[str, Any]]:
    with pyarrow.parquet.ParquetFile(path) as file:
        size, total, row = path.stat().st_size, max(1, file.metadata.num_rows), 0
        for group in file.iter_batches(batch_size=256):
            for record in group.to_pylist():
                row += 1
                yield f"{name}:{row}", _caught(_plain_values, without_nulls(record))
            on_bytes(size * row // total - size * (row - group.num_rows) // total)


def _json_lines(file: BinaryIO, name: Path, limit: int, on_bytes: OnBytes) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_lines(file, limit, on_bytes), start=1):
        yield f"{name}:{number}", _caught(_parse, line, limit)


def _lines(file: BinaryIO, limit: int, on_bytes: OnBytes) -> Iterator[bytes | None]:
    """Yields the lines of a file without line ends. In place of a line of more than ``limit`` bytes it yields None."""
    while line := file.readline(limit + 2):  # two more bytes for \r\n
        on_bytes(len(line))
        ended = line.endswith(b"\n")
        if len(line.rstrip(b"\r\n")) > limit:
            while not ended and (piece := file.readline(_CHUNK)):
                on_bytes(len(piece))
                ended = piece.endswith(b"\n")
            yield None
        else:
            yield line.rstrip(b"\r\n")


def _parse(line: bytes | None, limit: int) -> Any:
    if line is None:
        raise _too_long(limit)
    if not line.strip():
        raise UnusableError("the line is empty", "remove the line", "empty line")
    try:
        record = STRICT.decode(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UnusableError(
            f"the line is not UTF-8 (byte {error.start})", "save the file as UTF-8", "not UTF-8"
        ) from error
    except TwiceError as error:
        raise UnusableError(f"an object has the key {error.key!r} twice", "remove one of them", "key twice") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        what = f"the line contains broken JSON ({error})"
        raise UnusableError(what, "write one complete JSON object per line", "broken JSON") from error
    return _plain_values(record)


def _plain_values(record: Any) -> Any:
    """Returns ``record`` unchanged if JSON can represent it, unlike dates, bytes and NaN in Parquet's columns."""
    try:
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except TypeError as error:
        what = f"the record contains a value that JSON cannot represent ({error})"
        raise UnusableError(what, "write the value as text", "no JSON value") from error
    except UnicodeEncodeError as error:
        what = "the record contains half a surrogate pair (such as \\ud83d alone), which is not a character"
        raise UnusableError(what, "write the whole character", "half a character") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        what = "the record contains NaN or an infinite number"
        raise UnusableError(what, "write a finite number, or text", "number is not finite") from error
    return record


def _too_deep() -> UnusableError:
    return UnusableError("the record is nested too deeply", "flatten the record", "nested too deeply")


def _too_long(limit: int) -> UnusableError:
    return UnusableError(f"the record is longer than {limit} bytes", "shorten the trajectory, or split it", "too long")


def _array(file: BinaryIO, name: Path, limit: int, on_bytes: OnBytes) -> Iterator[tuple[str, Any]] | None:
    """Yields the items of a file that holds one JSON array, which is read as a whole. Returns None for any other file."""
    start = file.read(1 << 16).removeprefix(codecs.BOM_UTF8).lstrip()
    file.seek(0)
    if not start.startswith(b"["):  # a record in JSON lines begins with {
        return None
    data = file.read()
    on_bytes(len(data))
    try:
        items = STRICT.decode(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"{name}: the JSON array is broken ({why}); correct the file") from error
    return ((f"{name}:{number}", _caught(_item, item, limit)) for number, item in enumerate(items, start=1))


def _item(item: Any, limit: int) -> Any:
    item = _plain_values(item)
    if len(json.dumps(item, ensure_ascii=False).encode()) > limit:
        raise _too_long(limit)
    return item


def _caught(check: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return check(*arguments)
    except UnusableError as error:
        return error
