"""Reads trajectory files (JSON lines, one JSON array, or Parquet) one record at a time, each with its line number."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet

from turnwise.data.toolcalls import skip_space
from turnwise.errors import InputError
from turnwise.json_and_yaml import STRICT, TwiceError

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
    told = on_bytes or (lambda count: None)
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
            yield from _rows(path, name, told)
            return
        with path.open("rb") as file:
            if path.suffix == ".json" and _is_array(file):
                yield from _Array(file, name, limit, told).items()
            else:
                yield from _json_lines(file, name, limit, told)
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


def _rows(path: Path, name: Path, told: OnBytes) -> Iterator[tuple[str, Any]]:
    with pyarrow.parquet.ParquetFile(path) as file:
        size, total, row = path.stat().st_size, max(1, file.metadata.num_rows), 0
        for group in file.iter_batches(batch_size=256):
            for record in group.to_pylist():
                row += 1
                try:
                    yield f"{name}:{row}", _plain_values(without_nulls(record))
                except UnusableError as error:
                    yield f"{name}:{row}", error
            told(size * row // total - size * (row - group.num_rows) // total)


def _json_lines(file: BinaryIO, name: Path, limit: int, told: OnBytes) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_lines(file, limit, told), start=1):
        try:
            yield f"{name}:{number}", _parse(line, limit)
        except UnusableError as error:
            yield f"{name}:{number}", error


def _lines(file: BinaryIO, limit: int, told: OnBytes) -> Iterator[bytes | None]:
    """Yields the lines of a file without line ends. In place of a line of more than ``limit`` bytes it yields None."""
    while line := file.readline(limit + 2):  # two more bytes for \r\n
        told(len(line))
        ended = line.endswith(b"\n")
        if len(line.rstrip(b"\r\n")) > limit:
            while not ended and (piece := file.readline(_CHUNK)):
                told(len(piece))
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
            f"the line is not UTF-8: its byte {error.start} is invalid", "save the file as UTF-8", "not UTF-8"
        ) from error
    except TwiceError as error:
        raise UnusableError(
            f"an object has the key {error.key!r} twice", "remove one of the two", "key twice"
        ) from error
    except RecursionError as error:
        raise UnusableError("the record is nested too deeply", "flatten the record", "nested too deeply") from error
    except ValueError as error:
        remedy = "write one complete JSON object per line"
        raise UnusableError(f"the line contains broken JSON ({error})", remedy, "broken JSON") from error
    return _plain_values(record)


def _plain_values(record: Any) -> Any:
    """Returns ``record`` unchanged if JSON can represent it, else raises UnusableError.

    Parquet columns may also hold dates, bytes and NaN, which JSON cannot represent.
    """
    try:
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except TypeError as error:
        raise UnusableError(
            f"the record contains a value that JSON cannot represent ({error})",
            "write the value as text",
            "no JSON value",
        ) from error
    except UnicodeEncodeError as error:
        raise UnusableError(
            "the record contains half a surrogate pair (such as \\ud83d alone), which is not a character",
            "write the whole character",
            "half a character",
        ) from error
    except RecursionError as error:
        raise UnusableError("the record is nested too deeply", "flatten the record", "nested too deeply") from error
    except ValueError as error:
        remedy = "write a finite number, or text"
        raise UnusableError("the record contains NaN or an infinite number", remedy, "number is not finite") from error
    return record


def _too_long(limit: int) -> UnusableError:
    return UnusableError(f"the record is longer than {limit} bytes", "shorten the trajectory, or split it", "too long")


def _is_array(file: BinaryIO) -> bool:
    """Returns whether a file begins with ``[``, as one JSON array does. A record in JSON lines begins with ``{``."""
    start = file.read(1 << 16).removeprefix(codecs.BOM_UTF8).lstrip()
    file.seek(0)
    return start.startswith(b"[")


class _Array:
    """Reads the items of one JSON array one at a time, without loading the whole file."""

    def __init__(self, file: BinaryIO, name: Path, limit: int, told: OnBytes) -> None:
        self.file, self.name, self.limit, self.told = file, name, limit, told
        self.characters = codecs.getincrementaldecoder("utf-8-sig")()
        self.text, self.at, self.line, self.more = "", 0, 1, True

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yields a pair ``("file:number", item)`` for each array item. An UnusableError replaces an unusable item."""
        self._take("[")
        if self._next() == "]":
            self._take("]")
        else:
            for number in count(1):
                yield f"{self.name}:{number}", self._item()
                if self._take(",]") == "]":
                    break
        if found := self._next():
            raise InputError(
                f"{self.name}: line {self.line}: {found!r} follows the end of the array; write either JSON "
                "lines or only one array"
            )

    def _item(self) -> Any:
        self._next()
        place = f"{self.name}: line {self.line}"
        while True:
            try:
                item, end = STRICT.raw_decode(self.text, self.at)
                if end < len(self.text) or not self.more:  # a number may continue in the unread part
                    break
            except RecursionError as error:
                raise InputError(f"{place}: the record that begins here is nested too deeply; flatten it") from error
            except TwiceError as error:
                raise InputError(
                    f"{place}: an object has the key {error.key!r} twice; correct the record that begins here"
                ) from error
            except ValueError as error:
                if not self.more:
                    raise InputError(f"{place}: broken JSON ({error}); correct the record that begins here") from error
            if len(self.text) - self.at > 2 * self.limit:
                raise InputError(
                    f"{place}: the record that begins here is not complete after {self.limit} bytes; correct it"
                )
            self._grow(len(self.text) - self.at)
        size = len(self.text[self.at : end].encode("utf-8", "replace"))
        self._pass(end)
        if size > self.limit:
            return _too_long(self.limit)
        try:
            return _plain_values(item)
        except UnusableError as error:
            return error

    def _take(self, wanted: str) -> str:
        found = self._next()
        if not found or found not in wanted:
            what = repr(found) if found else "the end of the file"
            belongs = " or ".join(wanted)
            raise InputError(
                f"{self.name}: line {self.line}: the JSON array is broken: there is {what} instead of "
                f"{belongs}; correct the file"
            )
        self.at += 1
        return found

    def _next(self) -> str:
        """Skips whitespace and returns the file's next character, or an empty text at the end of the file."""
        while True:
            at = skip_space(self.text, self.at)
            self._pass(at)
            if at < len(self.text):
                return self.text[at]
            if not self.more:
                return ""
            self._grow(0)

    def _pass(self, end: int) -> None:
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def _grow(self, least: int) -> None:
        """Reads up to ``least`` bytes more, or 1 MiB if that is more. Drops the text before the current position."""
        got = self.file.read(max(_CHUNK, least))
        self.told(len(got))
        self.more = bool(got)
        try:
            self.text, self.at = self.text[self.at :] + self.characters.decode(got, final=not self.more), 0
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.name}: line {self.line}: the text after this line is not UTF-8; save the file as UTF-8"
            ) from error
