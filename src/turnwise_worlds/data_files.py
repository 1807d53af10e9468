"""Reads the data files (JSON, JSON lines, Parquet, CSV, TSV) that a user gives to an environment."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow
import pyarrow.parquet
from pydantic import BaseModel, Field

from turnwise.errors import InputError
from turnwise.files import parse_json

_MARK = re.compile(r"<(?=\||/?(?:tool_call|tool_response|tools|think)\b)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

ENDINGS = ".json, .jsonl, .parquet, .csv or .tsv"


def read_data_file(path: str | Path, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``("file:number", record)`` for every record of a JSON, JSON lines, Parquet, CSV or TSV file. ``key`` is
    the configuration key that names the file, for messages.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: this is a folder, a pipe or a device, not a file; set {key} to a {ENDINGS} file")
    try:
        for number, record in enumerate(_read(path), start=1):
            if record is None:
                continue
            if not isinstance(record, dict):
                raise InputError(f"{path}:{number}: the record must be a JSON object, got {type(record).__name__}")
            yield f"{path}:{number}", record
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; correct {key} (the current folder is {Path.cwd()})") from None
    except (OSError, UnicodeDecodeError, csv.Error, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: the file cannot be read ({error}); set {key} to a {ENDINGS} file") from error


class Row(BaseModel):
    """What every record of a file of tasks has. A subclass adds the fields of its environment."""

    id: str = Field(min_length=1)  # unique within its split
    split: Literal["train", "seen", "unseen"] = "train"


R = TypeVar("R", bound=Row)


def read_tasks(path: str | Path, key: str, kind: type[R]) -> list[tuple[R, dict[str, Any]]]:
    """Returns each record of a file of tasks twice: as a row of a ``kind``, and as it was read."""
    rows: dict[tuple[str, str], tuple[R, dict[str, Any]]] = {}
    for place, record in read_data_file(path, key):
        try:
            row = kind.model_validate(record)
            if (row.split, row.id) in rows:
                raise ValueError(f"the id {row.id!r} occurs twice in the split {row.split}; rename one")
        except ValueError as error:  # pydantic's errors too
            raise InputError(f"{place}: {error}") from None
        rows[row.split, row.id] = row, record
    if not rows:
        raise InputError(f"{path}: the file contains no task; set {key} to a file with one task per record")
    return list(rows.values())


def cleaned(text: str) -> str:
    """Returns a text with blanks in place of control characters, except tabs and line feeds, and after the ``<`` of
    markers such as ``<tool_call>``, so that no parser takes the text for one.
    """
    return _MARK.sub("< ", _CONTROL.sub(" ", text))


def _read(path: Path) -> Iterator[Any]:
    ending = path.suffix.lower()
    if ending == ".parquet":
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    elif ending in (".csv", ".tsv"):
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from csv.DictReader(file, delimiter="," if ending == ".csv" else "\t", strict=True)
    elif ending in (".json", ".jsonl", ".ndjson"):
        yield from _read_json(path)
    else:
        raise InputError(f"{path}: the file name has the unknown ending {ending!r}; use {ENDINGS}")


def _read_json(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        start = file.read(1)
        while start.isspace():
            start = file.read(1)
        file.seek(0)
        if start == "[":
            try:
                yield from parse_json(file.read())
            except ValueError as error:
                raise InputError(f"{path}: {error}; restore the file, or write one object per line") from error
            return
        for number, line in enumerate(file, start=1):
            try:
                yield parse_json(line) if line.strip() else None
            except ValueError as error:
                raise InputError(f"{path}:{number}: {error}; write one object per line") from error
