"""Expert trajectories on disk: JSON lines or Parquet in the chat-message format, one trajectory a line or row.

{"id": "...", "messages": [{"role": "user", "content": "..."}, ...], "tools": [...],
 "task": {"env": "household", "id": "train/000123", "split": "train", "data": {...}}, "success": true}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet

from turnwise.data.messages import UnusableError, parse_trajectory
from turnwise.errors import InputError
from turnwise.files import no_room, whole
from turnwise.types import Trajectory

MAX_LINE_BYTES = 8 * 2**20
_SHOWN = 20  # problems that an error message lists; the count names the rest
_JSON_LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True)
class Problem:
    """One unusable trajectory."""

    source: str  # "file:line"; a Parquet file's rows count from 1
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.source}: {self.what}; {self.remedy}"


class DataError(InputError):
    """The trajectories cannot be read or written, or (strict, or all of them) are unusable."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        shown = [f"  {problem}" for problem in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            shown.append(f"  and {len(problems) - _SHOWN} more")
        super().__init__("\n".join([message, *shown]))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Read:
    """What came out of the files: the good trajectories, in file order, and why the others are not among them."""

    trajectories: tuple[Trajectory, ...]
    problems: tuple[Problem, ...] = ()


def read_trajectories(
    paths: str | Path | Sequence[str | Path], strict: bool = False, max_line_bytes: int = MAX_LINE_BYTES
) -> Read:
    """Read and check trajectory files.

    Args:
        paths: ``.jsonl``, ``.ndjson`` or ``.json`` (JSON lines) and ``.parquet`` files.
        strict: one bad trajectory is an error; otherwise it is left out and listed in ``problems``.
        max_line_bytes: a longer line is a problem and is never held in memory.

    Raises:
        DataError: a file is missing or unreadable, no trajectory is usable, or ``strict`` and one is bad.
    """
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    if not names:
        raise DataError("no trajectory file is named: set data.file")
    good: dict[str, Trajectory] = {}
    problems: list[Problem] = []
    for name in names:
        try:
            for source, record in _records(Path(name), max_line_bytes):
                try:
                    trajectory = parse_trajectory(_value(record), source)
                    if trajectory.id in good:
                        first = good[trajectory.id].source
                        raise UnusableError(f"id {trajectory.id!r} was used at {first}", "give it an id of its own")
                    good[trajectory.id] = trajectory
                except UnusableError as error:
                    problems.append(Problem(source, error.what, error.remedy))
        except FileNotFoundError as error:
            raise DataError(f"{name}: no such trajectory file; correct data.file (read from {Path.cwd()})") from error
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{name}: cannot be read ({error}); correct the file or data.file") from error
    what = ", ".join(map(str, names))
    if strict and problems:
        raise DataError(f"{len(problems)} bad trajectories in {what} and data.strict is set:", problems)
    if not good:
        raise DataError(f"no usable trajectory in {what}:" if problems else f"{what}: empty, no trajectory", problems)
    return Read(tuple(good.values()), tuple(problems))


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Write JSON lines, whole or not at all. ``read_trajectories`` gives the same trajectories back (but ``source``).

    Every line has the same keys, and free-form objects (tools, call arguments, task data) are JSON text, so that
    columnar readers such as ``datasets`` find one schema.

    Raises:
        DataError: the file cannot be written; nothing that stood there is lost.
        OSError: the disk is full; nothing either.
    """
    path = Path(path)
    trajectories = list(trajectories)
    used = (key for trajectory in trajectories for message in trajectory.messages for key in message)
    keys = list(dict.fromkeys(["role", "content", *used]))
    try:
        with whole(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
            for trajectory in trajectories:
                file.write(json.dumps(_record(trajectory, keys), ensure_ascii=False) + "\n")
    except OSError as error:
        if no_room(error, path):
            raise
        raise DataError(f"{path}: cannot be written ({error.strerror}); choose another folder") from error


def _records(name: Path, limit: int) -> Iterator[tuple[str, Any]]:
    """(source, record or the UnusableError that stands in its place); messages keep the name that the user gave."""
    path = name.expanduser().resolve()
    if path.is_dir():
        raise DataError(f"{name}: a folder; name its trajectory files in data.file")
    if path.suffix == ".parquet":
        with pyarrow.parquet.ParquetFile(path) as file:
            row = 0
            for group in file.iter_batches(batch_size=256):
                for record in group.to_pylist():
                    row += 1
                    yield f"{name}:{row}", _pruned(record)
    elif path.suffix in _JSON_LINES:
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file, limit), start=1):
                try:
                    yield f"{name}:{number}", _parse(line, limit)
                except UnusableError as error:
                    yield f"{name}:{number}", error
    else:
        raise DataError(f"{name}: unknown kind of file; use {', '.join(_JSON_LINES)} (JSON lines) or .parquet")


def _pruned(value: Any) -> Any:
    """Without nulls at any depth: a column of objects gives each the keys of all, and cannot say which were absent."""
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None}
    return [_pruned(item) for item in value] if isinstance(value, list) else value


def _value(record: Any) -> Any:
    if isinstance(record, UnusableError):
        raise record
    return record


def _lines(file: BinaryIO, limit: int) -> Iterator[bytes | None]:
    """Lines without their ends; None for one that is longer than ``limit``, which is passed over in pieces."""
    while line := file.readline(limit + 2):  # two more: a line of exactly ``limit`` with \r\n
        ended = line.endswith(b"\n")
        if len(line.rstrip(b"\r\n")) > limit:
            while not ended and (piece := file.readline(2**20)):
                ended = piece.endswith(b"\n")
            yield None
        else:
            yield line.rstrip(b"\r\n")


def _parse(line: bytes | None, limit: int) -> Any:
    if line is None:
        raise UnusableError(f"longer than {limit} bytes", "shorten it, or split the trajectory")
    if not line.strip():
        raise UnusableError("empty line", "remove it")
    try:
        record = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse)
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise UnusableError(f"not UTF-8 (byte {error.start})", "save the file as UTF-8") from error
    except UnicodeEncodeError as error:
        raise UnusableError("holds half a surrogate pair", "write whole characters") from error
    except RecursionError as error:
        raise UnusableError("nested too deeply", "flatten it") from error
    except ValueError as error:
        raise UnusableError(f"broken JSON ({error})", "write one whole JSON object a line") from error
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


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
        },
        "success": trajectory.success,
    }


def _column(value: Any) -> Any:
    """A message's value with tool-call arguments as text, so that all lines have one type."""
    if not isinstance(value, list | tuple):
        return value
    return [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"].get("arguments", {}))}}
        if isinstance(call, dict) and isinstance(call.get("function"), dict)
        else call
        for call in value
    ]
