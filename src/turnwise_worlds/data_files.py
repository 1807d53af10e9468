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
    try:
        for number, record in enumerate(_read(path), start=1):
            if record is None:
                continue
            if not isinstance(record, dict):
                raise InputError(f"{path}:{number}: the record must be a JSON object, got {type(record).__name__}")
            yield f"{path}:{number}", record
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
        with path.open(encoding="utf-8") as file:
            one_list = file.read(4096).lstrip().startswith("[")
            file.seek(0)
            for number, text in enumerate([file.read()] if one_list else file, start=1):
                try:
                    found: Any = parse_json(text) if text.strip() else None
                except ValueError as error:
                    raise InputError(f"{path}:{number}: {error}; write one object per line, or one list") from error
                yield from found if one_list else (found,)
    else:
        raise InputError(f"{path}: the file name has the unknown ending {ending!r}; use {ENDINGS}")
