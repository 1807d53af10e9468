"""Reads and writes files of expert trajectories: JSON lines, one JSON array or Parquet, one trajectory per record:

{"id": "...", "messages": [{"role": "user", "content": "..."}, ...], "tools": [...],
 "task": {"env": "household", "id": "train/000123", "split": "train", "data": {...}}, "success": true}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from turnwise.data.parse_trajectory import parse_trajectory
from turnwise.data.read_records import UnusableError, read_records
from turnwise.errors import InputError
from turnwise.files import atomic_write, no_room
from turnwise.types import Trajectory

_ROWS = 256  # number of trajectories in a row group of Parquet
_SHOWN = 20  # largest number of problems that an error message lists


@dataclass(frozen=True, slots=True)
class BadTrajectory:
    """Describes one unusable trajectory: where it is, what is wrong with it, and how to correct it."""

    source: str  # "file:line"; in a Parquet file, the number of the row, which counts from 1
    what: str
    remedy: str
    reason: str = ""  # kind of mistake; see UnusableError

    def __str__(self) -> str:
        return f"{self.source}: {self.what}; {self.remedy}"


class DataError(InputError):
    """Raised if trajectory files cannot be read or written, or no trajectory in them can be used.

    If ``strict`` is set, one unusable trajectory is enough.
    """

    def __init__(self, message: str, problems: Sequence[BadTrajectory] = ()) -> None:
        shown = [f"  {problem}" for problem in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            shown.append(f"  and {len(problems) - _SHOWN} more")
        super().__init__("\n".join([message, *shown]))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Read:
    """The usable trajectories of some files in file order, and a description of each unusable trajectory."""

    trajectories: tuple[Trajectory, ...]
    problems: tuple[BadTrajectory, ...] = ()


def read_trajectories(paths: str | Path | Sequence[str | Path], strict: bool = False) -> Read:
    """Reads and checks trajectory files.

    Args:
        paths: files of JSON lines (``.jsonl``, ``.ndjson``, ``.json``), of a JSON array (``.json``) or Parquet
            (``.parquet``).
        strict: whether one unusable trajectory raises an error. If False, unusable trajectories are skipped and listed
            in ``problems``.

    Raises:
        DataError: a file is missing or unreadable, no trajectory is usable, or one is unusable and ``strict`` is set.
    """
    good: dict[str, Trajectory] = {}

    def take(trajectory: Trajectory) -> None:
        if trajectory.id in good:
            raise used_twice(trajectory.id, good[trajectory.id].source)
        good[trajectory.id] = trajectory

    problems = each_trajectory(take, paths, strict)
    return Read(tuple(good.values()), problems)


def each_trajectory(
    take: Callable[[Trajectory], None], paths: str | Path | Sequence[str | Path], strict: bool = False
) -> tuple[BadTrajectory, ...]:
    """Passes every usable trajectory of the files to ``take``, one at a time in file order.

    Returns a description of each unusable trajectory. The arguments except ``take`` are those of
    :func:`read_trajectories`. ``take`` may raise UnusableError to refuse a trajectory.

    Raises:
        DataError: as in :func:`read_trajectories`.
    """
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    if not names:
        raise DataError("no trajectory file is given: set data.file")
    problems: list[BadTrajectory] = []
    good = 0
    for name in names:
        for source, record in _records(Path(name)):
            try:
                take(parse_trajectory(record, source))
                good += 1
            except UnusableError as error:
                problems.append(BadTrajectory(source, error.what, error.remedy, error.reason))
    what = ", ".join(map(str, names))
    if strict and problems:
        raise DataError(
            f"{len(problems)} trajectories in {what} cannot be used, and data.strict=true forbids skipping them:",
            problems,
        )
    if not good:
        raise DataError(
            f"no usable trajectory in {what}:"
            if problems
            else f"{what}: no trajectory was found; set data.file to another file",
            problems,
        )
    return tuple(problems)


def used_twice(identity: str, first: str) -> UnusableError:
    """Returns the error for a trajectory whose id ``identity`` is already used at ``first`` ("file:line")."""
    return UnusableError(
        f"the id {identity!r} is already used at {first}", "give each trajectory its own id", "id used twice"
    )


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory], keys: Sequence[str] | None = None) -> None:
    """Writes trajectories atomically to a file of JSON lines, or of Parquet if the name ends in ``.parquet``.

    ``read_trajectories`` reads the trajectories back, except for their ``source``. Every line has the same keys.
    Free-form objects (tools, call arguments, task data) are written as JSON text. So programs that read columns, such
    as ``datasets``, find one schema for all lines.

    Args:
        trajectories: the trajectories. If ``keys`` is given, they are read one at a time, and at most one row group of
            a Parquet file is kept in memory.
        keys: all keys that the messages may have; None: they are first collected from all messages.

    Raises:
        DataError: the file cannot be written. An existing file is unchanged.
        OSError: the disk is full. An existing file is unchanged.
    """
    path = Path(path)
    if keys is None:
        trajectories = list(trajectories)
        used = (key for trajectory in trajectories for message in trajectory.messages for key in message)
        keys = list(dict.fromkeys(["role", "content", *used]))
    records = (_record(trajectory, keys) for trajectory in trajectories)
    try:
        with atomic_write(path) as part:
            if path.suffix == ".parquet":
                _write_rows(part, records, keys)
            else:
                with part.open("w", encoding="utf-8", newline="\n") as file:
                    for record in records:
                        file.write(json.dumps(record, ensure_ascii=False) + "\n")
    except OSError as error:
        if no_room(error, path):
            raise
        raise DataError(f"{path}: cannot be written ({error.strerror}); choose another folder") from error
    except pyarrow.ArrowException as error:
        raise DataError(
            f"{path}: Parquet has no column type for these messages ({error}); write JSON lines instead"
        ) from error


def _write_rows(part: Path, records: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> None:
    text = pyarrow.string()
    call = {"id": text, "type": text, "function": pyarrow.struct({"name": text, "arguments": text})}
    message = {key: pyarrow.list_(pyarrow.struct(call)) if key == "tool_calls" else text for key in keys}
    task = dict.fromkeys(("env", "id", "split", "data", "subset"), text)
    columns = {
        "id": text,
        "messages": pyarrow.list_(pyarrow.struct(message)),
        "tools": text,
        "task": pyarrow.struct(task),
        "success": pyarrow.bool_(),
        "pivot": pyarrow.struct(dict.fromkeys(("passed", "total"), pyarrow.int64())),
    }
    with pyarrow.parquet.ParquetWriter(part, pyarrow.schema(columns)) as file:
        rest = iter(records)
        while rows := list(islice(rest, _ROWS)):
            file.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema(columns)))


def _records(name: Path) -> Iterator[tuple[str, Any]]:
    try:
        yield from read_records(name)
    except InputError as error:
        raise DataError(str(error)) from error


def _record(trajectory: Trajectory, keys: Sequence[str]) -> dict[str, Any]:
    task = trajectory.task
    return {
        "id": trajectory.id,
        "messages": [{key: _column(message.get(key)) for key in keys} for message in trajectory.messages],
        "tools": json.dumps([dict(tool) for tool in trajectory.tools], ensure_ascii=False),
        "task": task
        and {
            "env": task.env,
            "id": task.id,
            "split": task.split,
            "data": json.dumps(dict(task.data), ensure_ascii=False),
            "subset": task.subset,
        },
        "success": trajectory.success,
        "pivot": trajectory.pivot and asdict(trajectory.pivot),
    }


def _column(value: Any) -> Any:
    """Returns the value of one key of a message in the form in which it is written.

    In a list of tool calls, the arguments of each call become JSON text, so that all lines have the same column types.
    """
    if not isinstance(value, list | tuple):
        return value
    return [
        {
            "id": None,
            **call,
            "function": {**call["function"], "arguments": json.dumps(call["function"].get("arguments", {}))},
        }
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
        else call
        for call in value
    ]
