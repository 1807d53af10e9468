"""Reads the data files (JSON, JSON lines, Parquet, CSV, TSV) that a user gives to an environment."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow
import pyarrow.parquet
from pydantic import BaseModel, Field, ValidationError

from turnwise.data.read_records import UnusableError, read_records
from turnwise.env import check_split
from turnwise.errors import InputError, first_mistake
from turnwise.files import expanded

_MARK = re.compile(r"<(?=\||/?(?:tool_call|tool_response|tools|think)\b)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")

_JSON, ENDINGS = (".json", ".jsonl", ".ndjson"), ".json, .jsonl, .parquet, .csv or .tsv"


def read_data_file(path: str | Path, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``("file:number", record)`` for every record of a JSON, JSON lines, Parquet, CSV or TSV file, without empty
    lines. ``key`` is the configuration key that names the file, for messages.
    """
    path = Path(path)
    try:
        rows = ((f"{path}:{number}", row) for number, row in enumerate(_data_file_rows(path), start=1))
        for place, record in read_records(path) if path.suffix in _JSON else rows:
            if isinstance(record, UnusableError):
                if record.reason == "empty line":
                    continue
                raise InputError(f"{place}: {record}")
            if not isinstance(record, dict):
                raise InputError(f"{place}: the record must be a JSON object, got {type(record).__name__}")
            yield place, record
    except InputError as error:
        raise InputError(f"{key}: {error}") from error
    except (OSError, UnicodeDecodeError, csv.Error, pyarrow.ArrowException) as error:
        raise InputError(f"{path}: the file cannot be read ({error}); set {key} to a {ENDINGS} file") from error


class TaskRow(BaseModel):
    """What every record of a file of tasks has. A subclass adds the fields of its environment."""

    id: str = Field(min_length=1)  # unique within its split
    split: Literal["train", "seen", "unseen"] = "train"


R = TypeVar("R", bound=TaskRow)


def read_tasks(path: str | Path, key: str, kind: type[R]) -> list[tuple[R, dict[str, Any]]]:
    """Returns each record of a file of tasks twice: as a row of a ``kind``, and as it was read."""
    rows: dict[tuple[str, str], tuple[R, dict[str, Any]]] = {}
    for place, record in read_data_file(path, key):
        try:
            row = kind.model_validate(record)
        except ValidationError as error:
            raise InputError(f"{place}: {first_mistake(error)[1]}") from None
        if (row.split, row.id) in rows:
            raise InputError(f"{place}: the id {row.id!r} occurs twice in the split {row.split}; rename one")
        rows[row.split, row.id] = row, record
    if not rows:
        raise InputError(f"{path}: the file contains no task; set {key} to a file with one task per record")
    return list(rows.values())


T = TypeVar("T")


def read_splits(files: Mapping[str, str] | None, read: Callable[[str, str], T]) -> tuple[dict[str, T], str]:
    """Returns what ``read`` makes of the file of each split and of its key, and a digest of the files' names."""
    files = files or {}
    for split in files:
        check_split(split, f"files.{split}")
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    return {split: read(path, f"files.{split}") for split, path in files.items()}, digest


def cleaned(text: str) -> str:
    """Returns a text with blanks in place of control characters, except tabs and line feeds, and after the ``<`` of
    markers such as ``<tool_call>``, so that no parser takes the text for one.
    """
    return _MARK.sub("< ", _CONTROL.sub(" ", text))


def _data_file_rows(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        with pyarrow.parquet.ParquetFile(expanded(path)) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    elif path.suffix in (".csv", ".tsv"):
        with expanded(path).open(encoding="utf-8-sig", newline="") as file:
            yield from csv.DictReader(file, delimiter="," if path.suffix == ".csv" else "\t", strict=True)
    else:
        raise InputError(f"{path}: the file name has the unknown ending {path.suffix!r}; use {ENDINGS}")
