"""Reads, checks and writes files of expert trajectories: JSON lines, one JSON array or Parquet, one trajectory per record.

{"id": "...", "messages": [{"role": "user", "content": "..."}, ...], "tools": [...],
 "task": {"env": "household", "id": "train/000123", "split": "train", "data": {...}}, "success": true}

The models below say which values a record may hold; what concerns several of them is checked by functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Len, MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from turnwise.data.nemo_gym_rows import is_row, record_of
from turnwise.data.read_records import OnBytes, UnusableError, need, read_records
from turnwise.data.tool_schema import arguments_of, check_call, check_tool, function_of
from turnwise.data.toolcalls import checked_call
from turnwise.errors import InputError, first_mistake
from turnwise.files import atomic_write, parse_json
from turnwise.types import Pivot, Task, Trajectory

# largest number of messages of a trajectory; so many exceed any model's context, but can be rendered within seconds
MOST = 20_000


def parse_field(text: Any, what: str) -> Any:
    """Returns the value of a field that may be written as JSON text, such as ``tools``, or raises an UnusableError."""
    if not isinstance(text, str):
        return text
    try:
        return parse_json(text) if text else None
    except ValueError as error:
        what = f"{what} is a text that is not JSON ({error}); write {what} as JSON"
        raise UnusableError("broken JSON", what) from error


class _Model(BaseModel):
    model_config = ConfigDict(strict=True)  # keys that no field names are ignored


class _Message(_Model):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: Annotated[list[dict[str, Any]] | None, BeforeValidator(lambda calls: calls or None)] = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None


class _Task(_Model):
    env: Annotated[str, MinLen(1)]
    id: Annotated[str, MinLen(1)]
    split: Annotated[Literal["train", "seen", "unseen"] | None, BeforeValidator(lambda split: split or None)] = None
    data: Annotated[dict[str, Any] | None, BeforeValidator(lambda data: parse_field(data, "task.data"))] = None
    subset: str | None = None


class _Counts(_Model):
    passed: Annotated[int, Ge(0)] | None = None
    total: Annotated[int, Ge(0)] | None = None


class _Record(_Model):
    id: Annotated[str, MinLen(1)] | None = None
    messages: Annotated[list[_Message], Len(1, MOST)]
    task: _Task | None = None
    success: bool | None = None
    pivot: _Counts | None = None


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
    if is_row(record):
        record = record_of(record, source)
    if record.get("messages") is None:
        file, keys = source.rpartition(":")[0], sorted(map(str, record))
        remedy = 'write {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'
        foreign = {"conversations", "conversation", "query", "instruction"}  # as turnwise.data.other_formats reads them
        if foreign & set(record):
            remedy = f"convert them: python scripts/prepare_data.py {file} --out {Path(file).stem}-messages.jsonl"
        raise UnusableError("no messages", f"there are no 'messages', only the keys {keys}; {remedy}")
    try:
        read = _Record.model_validate(record)
    except ValidationError as error:
        place, what = first_mistake(error)
        reason = re.sub(r"\[.*?\]", "", place)
        raise UnusableError(f"unusable {reason}", f"{what}; correct it (docs/data.md)") from error
    tools = _tools_of_trajectory(record.get("tools"))
    known = tools if read.pivot is None else None
    messages = tuple(_read_message(one, f"messages[{place}]", known) for place, one in enumerate(record["messages"]))
    _check_turns(messages)
    task, pivot = None, None
    if read.task is not None:
        one = read.task
        task = Task(one.env, one.id, one.split or "train", one.data or {}, one.subset or "")
    if read.pivot is not None:
        pivot = Pivot(read.pivot.passed or 0, read.pivot.total or 0)
        need(pivot.passed <= pivot.total, "unusable pivot", f"pivot: {pivot.passed} of {pivot.total} samples passed")
        need(task is None, "pivot with a task", "the record has both keys 'pivot' and 'task'; leave out one of the two")
    return Trajectory(read.id or source, messages, tools, task, read.success, source, pivot)


def checked_record(record: Any) -> Mapping[str, Any]:
    """Returns a record of a file after checking that it is a JSON object. If ``record`` is an UnusableError, because
    the record could not be read, this error is raised.
    """
    if isinstance(record, UnusableError):
        raise record
    kind = type(record).__name__
    need(isinstance(record, Mapping), "no object", f"the record must be a JSON object, but it is of type {kind}")
    checked: Mapping[str, Any] = record
    return checked


def listed_tools(field: Any) -> list[Any]:
    """Returns the tools of a record, which may be a list, JSON text or absent. Each tool may be JSON text too."""
    tools = parse_field(field, "tools") or []
    need(isinstance(tools, list), "unusable tools", f"tools must be a list, got {type(tools).__name__}")
    return [parse_field(tool, "a tool") for tool in tools]


def _tools_of_trajectory(field: Any) -> tuple[Mapping[str, Any], ...]:
    tools = listed_tools(field)
    named: dict[Any, Any] = {}
    for tool in tools:
        problem = check_tool(tool)
        need(not problem, "unusable tools", f"{problem}; correct 'tools'")
        function = function_of(tool)
        same = named.setdefault(function["name"], function) == function
        need(same, "unusable tools", f"two tools have the name {function['name']!r}; give each its own name")
    return tuple(_without_nulls(tool) for tool in tools)


def _read_message(message: Mapping[str, Any], where: str, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    role = message["role"]
    message = {"content": "", **_without_nulls(message)}
    calls = message.pop("tool_calls", None) or []
    only = f"{where} is a {role} message with tool_calls, which only assistant messages may have; leave them out"
    need(not calls or role == "assistant", "unusable call", only)
    for call in calls:
        if problems := (tools is not None and check_call(call, tools)) or _strange_call(call):
            raise UnusableError(
                "call does not fit its tool",
                f"{where} has an unusable tool call ({'; '.join(problems)}); correct the call, or the tool's schema in "
                "'tools'",
            )
    speaks = role != "assistant" or calls or message["content"].strip()
    need(speaks, "empty turn", f"{where} is an empty assistant turn; give it content or tool_calls")
    if calls:
        message["tool_calls"] = [_normal_call(call) for call in calls]
    return {"role": role, **{key: value for key, value in message.items() if key != "role"}}


def _strange_call(call: Mapping[str, Any]) -> list[str]:
    try:
        checked_call(function_of(call).get("name"), arguments_of(call))
    except (ValueError, TypeError) as error:
        return [str(error)]
    return []


def _normal_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {**function_of(call), "arguments": arguments_of(call)}
    outer = {key: value for key, value in call.items() if key not in ("function", "name", "arguments")}
    return _without_nulls({**outer, "type": "function", "function": function})


_ORDER = re.compile("s*(?:u(?:a(?:u|t+))*a?)?")  # by the first letters of the roles


def _check_turns(messages: Sequence[Mapping[str, Any]]) -> None:
    """Checks the order of a conversation's messages: system messages if there are any, one user message, then assistant
    turns and observations in alternation. Several tool messages may answer one assistant turn.
    """
    roles = [message["role"] for message in messages]
    what = "the conversation has no assistant turn; add the missing assistant turn, or leave out the trajectory"
    need("assistant" in roles, "no assistant turn", what)
    fits = _ORDER.match("".join(role[0] for role in roles))
    end, answers = fits.end() if fits else 0, 0
    for place, role in enumerate(roles[:end]):
        answers = answers - 1 if role == "tool" else max(1, len(messages[place].get("tool_calls", ())))
        end = min(end, place) if answers < 0 else end
    if end < len(messages):
        raise UnusableError(
            "turns do not alternate",
            f"messages[{end}] is a {roles[end]} message in the wrong place: system messages come first, then a user "
            "message, then assistant turns and observations (one user message, or a tool message for each call) in turn; "
            "add the missing message, or merge messages",
        )


def _without_nulls(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}


# -- files -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BadTrajectory:
    """One unusable trajectory: where it is, what is wrong with it and how to correct it."""

    source: str  # "file:line"; in a Parquet file, the number of the row, which counts from 1
    what: str
    reason: str = ""  # kind of mistake; see UnusableError

    def __str__(self) -> str:
        return f"{self.source}: {self.what}"


def by_kind(problems: Sequence[BadTrajectory]) -> list[str]:
    """One line for each kind of mistake: the first trajectory that has it, and how many more have it."""
    kinds: dict[str, list[BadTrajectory]] = {}
    for problem in problems:
        kinds.setdefault(problem.reason, []).append(problem)
    return [f"{same[0]}{f' ({len(same) - 1} more like it)' if len(same) > 1 else ''}" for same in kinds.values()]


class Read(NamedTuple):
    """The usable trajectories of some files in file order, and a description of each unusable trajectory."""

    trajectories: tuple[Trajectory, ...]
    problems: tuple[BadTrajectory, ...]


def read_trajectories(paths: str | Path | Sequence[str | Path], strict: bool = False, **more: Any) -> Read:
    """Reads and checks whole trajectory files; the arguments are those of :func:`each_trajectory`."""
    good: dict[str, Trajectory] = {}

    def take(trajectory: Trajectory) -> None:
        if trajectory.id in good:
            raise used_twice(trajectory.id, good[trajectory.id].source)
        good[trajectory.id] = trajectory

    problems = each_trajectory(take, paths, strict, **more)
    return Read(tuple(good.values()), problems)


def each_trajectory(
    take: Callable[[Trajectory], None],
    paths: str | Path | Sequence[str | Path],
    strict: bool = False,
    most: int | None = None,
    parse: Callable[[Any, str], Trajectory] = parse_trajectory,
    on_bytes: OnBytes | None = None,
) -> tuple[BadTrajectory, ...]:
    """Passes every usable trajectory of the files to ``take``, one at a time in file order, and returns a description
    of each unusable trajectory. ``take`` may raise UnusableError to refuse a trajectory.

    Args:
        strict: whether one unusable trajectory raises an error.
        most: number of records that are read of each file (None: all).
        parse: a function that reads one record of the file, as :func:`parse_trajectory` does.
        on_bytes: see :data:`OnBytes`.

    Raises:
        InputError: a file is missing or unreadable, no trajectory is usable, or one is unusable and ``strict`` is set.
    """
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    problems: list[BadTrajectory] = []
    good = 0
    for name in names:
        for source, record in islice(read_records(Path(name), on_bytes=on_bytes), most):
            try:
                take(parse(record, source))
                good += 1
            except UnusableError as error:
                problems.append(BadTrajectory(source, str(error), error.reason))
    message = f"no usable trajectory in {', '.join(map(str, names))}"
    if strict and problems:
        message = f"{len(problems)} trajectories cannot be used, and strict (data.strict=true) forbids leaving them out"
    elif good:
        return tuple(problems)
    raise InputError("\n  ".join([f"{message}:", *by_kind(problems)]) if problems else f"{message}; name another file")


def used_twice(identity: str, first: str) -> UnusableError:
    """Returns the error for a trajectory whose id ``identity`` is already used at ``first`` ("file:line")."""
    return UnusableError("id used twice", f"the id {identity!r} is already used at {first}; give each its own id")


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Writes trajectories atomically to a file of JSON lines, from which ``read_trajectories`` reads them back.

    Every line has the same keys, and free-form objects (tools, call arguments, task data) are written as JSON text. So
    programs that read columns, such as ``datasets``, find one schema for all lines.
    """
    trajectories = list(trajectories)
    used = (key for trajectory in trajectories for message in trajectory.messages for key in message)
    keys = list(dict.fromkeys([*_Message.model_fields, *used]))
    with atomic_write(Path(path)) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        for trajectory in trajectories:
            file.write(json.dumps(_record_of_trajectory(trajectory, keys), ensure_ascii=False) + "\n")


def _record_of_trajectory(trajectory: Trajectory, keys: Sequence[str]) -> dict[str, Any]:
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
    if isinstance(value, list | tuple):
        return [_column(each) for each in value]
    call = value.get("function") if isinstance(value, dict) else None
    if isinstance(call, dict):  # the arguments of a call become JSON text
        return {"id": None, **value, "function": {**call, "arguments": json.dumps(call.get("arguments", {}))}}
    return value
