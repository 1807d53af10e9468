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

from turnwise.data.pivot_rows import is_row, record_of
from turnwise.data.read_records import UnusableError, need, read_records
from turnwise.data.tool_schema import arguments_of, check_call, check_tool, function_of
from turnwise.data.toolcalls import REASONING, ToolCallError, checked_call
from turnwise.errors import InputError
from turnwise.files import atomic_write, no_room, parse_json
from turnwise.types import Pivot, Task, Trajectory

ROLES = ("system", "user", "assistant", "tool")
# largest number of messages of a trajectory; so many exceed any model's context, but can be rendered within seconds
MOST = 20_000
# keys of a message, other than ``content``, whose values must be text
_TEXTS = ("name", "tool_call_id", *REASONING)
SPLITS = ("train", "seen", "unseen")


def parse_trajectory(record: Any, source: str) -> Trajectory:
    """Checks one record of a trajectory file and returns it as a Trajectory.

    The record holds chat messages, or it is a pivot row of NeMo Gym. Keys that hold null count as absent. The arguments
    of tool calls may be JSON text and become objects. ``tools`` and ``task.data`` may also be JSON text. A record
    without an id gets ``source`` as its id. The tool calls of a pivot are not checked against the schemas of their
    tools, because the rules for pivot rows do not require this.

    Raises:
        UnusableError: the record has a mistake; the error describes the first mistake. If ``record`` is an
            UnusableError, because the record could not be read, this error is raised.
    """
    record = checked_record(record)
    record = _without_nulls(record_of(record, source) if is_row(record) else record)
    if "messages" not in record:
        file, keys = source.rpartition(":")[0], sorted(map(str, record))
        remedy = 'write {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'
        if {"conversations", "conversation", "query"} & set(record):  # as turnwise.data.foreign reads them
            remedy = f"convert them: python scripts/prepare_data.py {file} --out {Path(file).stem}-messages.jsonl"
        raise UnusableError("no messages", f"there are no 'messages', only the keys {keys}; {remedy}")
    identity, success = record.get("id", source), record.get("success")
    need(
        isinstance(identity, str) and identity,
        "unusable id",
        f"id must be non-empty text, got {identity!r}; give each trajectory a text id of its own",
    )
    need(
        success is None or isinstance(success, bool),
        "unusable success",
        f"success must be true, false or absent, got {success!r}",
    )
    tools = _tools(record.get("tools"))
    pivot = _pivot(record)
    messages = _messages(record["messages"], tools if pivot is None else None)
    return Trajectory(identity, messages, tools, _task(record.get("task")), success, source, pivot)


def checked_record(record: Any) -> Mapping[str, Any]:
    """Returns a record of a file after checking that it is a JSON object.

    Raises:
        UnusableError: the record is no object. If ``record`` is an UnusableError, because the record could not be read,
            this error is raised.
    """
    if isinstance(record, UnusableError):
        raise record
    kind = type(record).__name__
    need(isinstance(record, Mapping), "no object", f"the record must be a JSON object, but it is of type {kind}")
    checked: Mapping[str, Any] = record
    return checked


def listed_tools(given: Any) -> list[Any]:
    """Returns the tools of a record, which may be a list, JSON text or absent. Each tool may be JSON text too.

    Raises:
        UnusableError: the tools are not a list.
    """
    tools = parse_field(given, "tools") if isinstance(given, str) and given else given or []
    need(isinstance(tools, list), "unusable tools", f"tools must be a list, got {type(tools).__name__}")
    return [parse_field(tool, "a tool") if isinstance(tool, str) else tool for tool in tools]


def _tools(given: Any) -> tuple[Mapping[str, Any], ...]:
    tools = listed_tools(given)
    for tool in tools:
        problem = check_tool(tool)
        need(not problem, "unusable tools", f"{problem}; correct 'tools'")
    named: dict[Any, Any] = {}
    for function in map(function_of, tools):
        same = named.setdefault(function["name"], function) == function
        need(same, "unusable tools", f"two tools have the name {function['name']!r}; give each its own name")
    return tuple(_without_nulls(tool) for tool in tools)


def _task(task: Any) -> Task | None:
    if task is None:
        return None

    def check(holds: object, what: str) -> None:
        need(holds, "unusable task", f"{what}; write task as {{'env', 'id', 'split', 'data'}}, or leave it out")

    check(isinstance(task, Mapping), f"task must be an object, got {type(task).__name__}")
    for key in ("env", "id"):
        check(isinstance(task.get(key), str) and task[key], f"task.{key} must be non-empty text, got {task.get(key)!r}")
    split, data, subset = task.get("split") or "train", task.get("data"), task.get("subset") or ""
    check(split in SPLITS, f"task.split must be one of {', '.join(SPLITS)}, got {split!r}")
    data = parse_field(data, "task.data") if isinstance(data, str) and data else data or {}
    check(isinstance(data, Mapping), f"task.data must be an object, got {type(data).__name__}")
    check(isinstance(subset, str), f"task.subset must be text, got {subset!r}")
    return Task(task["env"], task["id"], split, dict(data), subset)


def _pivot(record: Mapping[str, Any]) -> Pivot | None:
    pivot = record.get("pivot")
    if pivot is None:
        return None
    counts = [pivot.get(key) or 0 for key in ("passed", "total")] if isinstance(pivot, Mapping) else []
    need(
        counts and all(type(count) is int and count >= 0 for count in counts) and counts[0] <= counts[1],
        "unusable pivot",
        f"pivot must be an object with the counts 'passed' and 'total', got {pivot!r:.80}; correct the counts, or write "
        "{} if nothing was sampled",
    )
    both = "the record has both keys 'pivot' and 'task'; leave out one of the two"
    need(record.get("task") is None, "pivot with a task", both)
    return Pivot(*counts)


def _messages(messages: Any, tools: Sequence[Mapping[str, Any]] | None) -> tuple[dict[str, Any], ...]:
    need(isinstance(messages, list) and messages, "no messages", "messages must be a non-empty list")
    many = f"the trajectory has {len(messages)} messages, more than {MOST}; split it"
    need(len(messages) <= MOST, "too many messages", many)
    checked = tuple(_message(message, f"messages[{place}]", tools) for place, message in enumerate(messages))
    _check_turns(checked)
    return checked


def _message(message: Any, where: str, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    if not isinstance(message, Mapping) or "role" not in message:
        has = f"only the keys {sorted(map(str, message))}" if isinstance(message, Mapping) else type(message).__name__
        raise UnusableError("unusable message", f"{where} must be an object with 'role' and 'content', got {has}")
    role = message["role"]
    need(role in ROLES, "unknown role", f"{where} has the unknown role {role!r}; use one of {', '.join(ROLES)}")
    message = _without_nulls({"content": "", **_without_nulls(message)})
    kind = type(message["content"]).__name__
    need(
        isinstance(message["content"], str),
        "content is not a string",
        f"{where}.content must be one text, got {kind}; images are not supported",
    )
    for key in _TEXTS:
        kind = type(message.get(key, "")).__name__
        need(kind == "str", "unusable message", f"{where}.{key} must be text, got {kind}; write text, or leave it out")
    calls = message.pop("tool_calls", None) or []
    need(
        isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls),
        "unusable call",
        f"{where}.tool_calls must be a list of objects; write [{{'type', 'function': {{...}}}}]",
    )
    only = f"{where} is a {role} message with tool_calls, which only assistant messages may have; leave them out"
    need(not calls or role == "assistant", "unusable call", only)
    for call in calls:
        if problems := (tools is not None and check_call(call, tools)) or _strange_call(call):
            raise UnusableError(
                "call does not fit its tool",
                f"{where} has an unusable tool call ({'; '.join(problems)}); correct the call, or the tool's schema in "
                "'tools'",
            )
    said = role != "assistant" or calls or message["content"].strip()
    need(said, "empty turn", f"{where} is an empty assistant turn; give it content or tool_calls")
    if calls:
        message["tool_calls"] = [_normal_call(call) for call in calls]
    return {"role": role, **{key: value for key, value in message.items() if key != "role"}}


def _strange_call(call: Mapping[str, Any]) -> list[str]:
    try:
        checked_call(function_of(call).get("name"), arguments_of(call))
    except ToolCallError as error:
        return [str(error)]
    return []


def _normal_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {**function_of(call), "arguments": arguments_of(call)}
    outer = {key: value for key, value in call.items() if key not in ("function", "name", "arguments")}
    return _without_nulls({**outer, "type": "function", "function": function})


def _check_turns(messages: Sequence[Mapping[str, Any]]) -> None:
    """Checks the order of a conversation's messages: system messages if there are any, one user message, then assistant
    turns and observations in alternation. Several tool messages may answer one assistant turn.

    Raises:
        UnusableError: the messages have another order.
    """
    needs_turn = "add the missing assistant turn, or leave out the trajectory"
    if not any(message["role"] == "assistant" for message in messages):
        raise UnusableError("no assistant turn", f"the conversation has no assistant turn; {needs_turn}")
    opening = 0
    while messages[opening]["role"] == "system":
        opening += 1
    need(
        messages[opening]["role"] == "user",
        "no user message first",
        f"messages[{opening}] has the role {messages[opening]['role']}, but the first message after the system messages "
        "must be a user message; add one",
    )
    answers = 0  # number of tool messages that may still follow the last assistant turn
    for place in range(opening + 1, len(messages)):
        role, before = messages[place]["role"], messages[place - 1]["role"]
        late = f"messages[{place}] is a system message after the start of the conversation; move it to the start"
        need(role != "system", "late system message", late)
        if role == "assistant":
            need(
                before != "assistant",
                "turns do not alternate",
                f"messages[{place}] is an assistant turn that follows another one; add the user or tool message between "
                "them, or merge them",
            )
            answers = max(1, len(messages[place].get("tool_calls", ())))
            continue
        answers = answers - 1 if role == "tool" else answers
        need(
            before == "assistant" or (role == before == "tool" and answers >= 0),
            "turns do not alternate",
            f"an assistant turn is missing between messages[{place - 1}] and messages[{place}]; {needs_turn}",
        )


def _without_nulls(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}


def parse_field(text: str, what: str) -> Any:
    """Returns the value of a field of a trajectory's record that is written as JSON text, such as ``tools``.

    Raises:
        UnusableError: the text is not JSON. The error message uses ``what`` as the name of the field.
    """
    try:
        return parse_json(text)
    except ValueError as error:
        raise UnusableError(
            "broken JSON", f"{what} is a text that is not JSON ({error}); write {what} as JSON"
        ) from error


_ROWS = 256  # number of trajectories in a row group of Parquet


@dataclass(frozen=True, slots=True)
class BadTrajectory:
    """Describes one unusable trajectory: where it is, what is wrong with it and how to correct it."""

    source: str  # "file:line"; in a Parquet file, the number of the row, which counts from 1
    what: str
    reason: str = ""  # kind of mistake; see UnusableError

    def __str__(self) -> str:
        return f"{self.source}: {self.what}"


class DataError(InputError):
    """Raised if trajectory files cannot be read or written, or no trajectory in them can be used.

    If ``strict`` is set, one unusable trajectory is enough.
    """

    def __init__(self, message: str, problems: Sequence[BadTrajectory] = ()) -> None:
        super().__init__("\n".join([message, *(f"  {line}" for line in by_kind(problems))]))
        self.problems = tuple(problems)


def by_kind(problems: Sequence[BadTrajectory]) -> list[str]:
    """One line for each kind of mistake: the first trajectory that has it, and how many more have it."""
    kinds: dict[str, list[BadTrajectory]] = {}
    for problem in problems:
        kinds.setdefault(problem.reason, []).append(problem)
    return [f"{same[0]}{f' ({len(same) - 1} more like it)' if len(same) > 1 else ''}" for same in kinds.values()]


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
    take: Callable[[Trajectory], None],
    paths: str | Path | Sequence[str | Path],
    strict: bool = False,
    most: int | None = None,
) -> tuple[BadTrajectory, ...]:
    """Passes every usable trajectory of the files to ``take``, one at a time in file order.

    Returns a description of each unusable trajectory. ``take`` may raise UnusableError to refuse a trajectory. ``most``
    is the number of records that are read of each file (None: all). The other arguments are those of
    :func:`read_trajectories`.

    Raises:
        DataError: as in :func:`read_trajectories`.
    """
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    if not names:
        raise DataError("no trajectory file is given: set data.file")
    problems: list[BadTrajectory] = []
    good = 0
    for name in names:
        for source, record in islice(_named_records(Path(name)), most):
            try:
                take(parse_trajectory(record, source))
                good += 1
            except UnusableError as error:
                problems.append(BadTrajectory(source, str(error), error.reason))
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
    return UnusableError("id used twice", f"the id {identity!r} is already used at {first}; give each its own id")


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


def _named_records(name: Path) -> Iterator[tuple[str, Any]]:
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
