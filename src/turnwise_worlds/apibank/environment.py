"""``env=apibank``: API-Bank's three levels, with the public files or generated tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from turnwise.data.match_calls import match_calls
from turnwise.data.tool_schema import json_schema, tool_of
from turnwise.data.toolcalls import ToolCallError, bfcl_python, checked_call
from turnwise.env import first_tasks
from turnwise.errors import InputError
from turnwise.files import parse_json, whole_characters
from turnwise.types import Task, ToolCall
from turnwise_worlds.apibank.office import SEARCHER, OfficeTasks, words
from turnwise_worlds.tool_dialogues import DialogueEnv, DialogueProblem, UserTurn, World, turns_data, turns_from

FILES = {1: "level-1-api.json", 2: "level-2-api.json", 3: "level-3.json"}
_DESCRIPTIONS = "API descriptions:"
_ASKS = "Generate API Request:"


class RecordedApis(World):
    """The APIs of an episode, which give the recorded answers of one record and never change."""

    def __init__(self, answers: Sequence[tuple[ToolCall, str]]) -> None:
        self.answers = tuple(answers)

    def call(self, call: ToolCall) -> str:
        unknown = json.dumps({"exception": "the record has no such call"})
        return next((answer for known, answer in self.answers if same_call(call, known)), unknown)

    def fork(self) -> RecordedApis:
        return self

    def same_state(self, other: RecordedApis) -> bool:
        return True


def same_call(made: ToolCall, true: ToolCall) -> bool:
    """Of two searches, only the words of the keywords are compared."""
    if made.name == true.name == SEARCHER:
        return words(str(made.arguments.get("keywords"))) == words(str(true.arguments.get("keywords")))
    return match_calls([made], [true])


class ApiBankTasks:
    """The tasks in API-Bank's public files. A hash of a record's field ``file`` or, without it, of the requirement puts
    80 % of the dialogues into ``train``, 10 % into ``seen`` and 10 % into ``unseen``.
    """

    def __init__(self, folder: str | Path, levels: Sequence[int] = (1, 2, 3)) -> None:
        self.left_out: list[tuple[str, str]] = []  # records that cannot be used: (place in the file, reason)
        self._tasks: dict[str, list[Task]] = {"train": [], "seen": [], "unseen": []}
        for level in levels:
            path = Path(folder).expanduser() / FILES[level]
            for number, record in enumerate(_records(path)):
                try:
                    task = _task(level, number, whole_characters(record))
                except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
                    self.left_out.append((f"{path}: record {number}", f"{type(error).__name__}: {error}"))
                else:
                    self._tasks[task.split].append(task)
        if not any(self._tasks.values()):
            source, reason = self.left_out[0] if self.left_out else (str(folder), "no record")
            raise InputError(
                f"{source}: {reason}. None of the records can be used; set env.data to API-Bank's folder json_test_data"
            )

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        return first_tasks(self._tasks[split], count, f"split {split} of the public API-Bank", f"{seed}/apibank")

    def problem(self, task: Task) -> DialogueProblem:
        data, turns = task.data, turns_from(task.data["turns"])
        recorded = partial(RecordedApis, list(zip(turns[0].calls, data["answers"], strict=True)))
        return DialogueProblem(recorded, turns, tuple(data["tools"]), {0: tuple(data["others"])}, data["level"] < 3)


def _records(path: Path) -> list[Any]:
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(records, list):
            return records
        why = f"must contain a list of records, got {type(records).__name__}"
    except (OSError, ValueError, RecursionError) as error:
        why = f"cannot be read ({error})"
    raise InputError(f"{path}: the file {why}; set env.data to API-Bank's folder json_test_data")


def _task(level: int, number: int, record: Mapping[str, Any]) -> Task:
    data = _planned(record) if level == 3 else _step(record)
    group = str(record.get("file") or record.get("requirement"))
    share = int.from_bytes(sha256(group.encode()).digest()[:4]) / 2**32
    split = "train" if share < 0.8 else "seen" if share < 0.9 else "unseen"
    return Task("apibank", f"level-{level}/{split}/{number:06d}", split, {"level": level, **data}, f"level-{level}")


def _step(record: Mapping[str, Any]) -> dict[str, Any]:
    call = read_recorded_request(record["expected_output"])
    dialogue = record["input"].replace(_ASKS, "").strip()
    lines = record["instruction"].partition(_DESCRIPTIONS)[2].splitlines()
    tools = [_tool(parse_json(line)) for line in lines if line.strip()]
    if not dialogue or not tools:
        raise ValueError("the record has no dialogue, or describes no API")
    turns = turns_data([UserTurn(dialogue, (call,))])
    return {"tools": tools, "others": [], "turns": turns, "answers": ["success"]}


def _planned(record: Mapping[str, Any]) -> dict[str, Any]:
    calls, answers, values = [], [], {}
    for one in record["apis"]:
        calls.append(checked_call(one["api_name"], one["input"]))
        output = one["output"]
        output = output.get("output", output) if isinstance(output, Mapping) else output
        answers.append(json.dumps(output, ensure_ascii=False))
        if one["api_name"] == SEARCHER:
            for about in output if isinstance(output, list) else [output]:
                values[about["name"]] = _tool(about)
    if not calls:
        raise ValueError("the record contains no call")
    search = _tool(
        {"name": SEARCHER, "description": "Searches for an API.", "input_parameters": {"keywords": {"type": "str"}}}
    )
    turns = turns_data([UserTurn(record["requirement"].strip(), tuple(calls))])
    return {"tools": [search], "others": list(values.values()), "turns": turns, "answers": answers}


def read_recorded_request(text: str) -> ToolCall:
    match = re.search(r"\[\w+\(.*\)\]", text, re.DOTALL)
    try:
        calls = bfcl_python(match[0]).calls if match else ()
    except ToolCallError as error:
        raise ValueError(f"the request {text[:80]!r} cannot be read ({error})") from error
    if len(calls) != 1:
        raise ValueError(f"exactly one request was expected in {text[:80]!r}")
    return calls[0]


def _tool(about: Mapping[str, Any]) -> dict[str, Any]:
    parameters = about.get("input_parameters") or {}
    properties = {name: json_schema(schema) for name, schema in parameters.items()}
    for schema in properties.values():
        if schema.get("type") not in ("string", "integer", "number", "boolean", "array", "object"):
            schema.pop("type", None)
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return tool_of(about["name"], about.get("description", ""), schema)


@dataclass(eq=False)
class ApiBankEnv(DialogueEnv):
    """The policy fulfils a request with API calls. ``conf/env/apibank.yaml`` explains the arguments."""

    name = "apibank"

    steps: PositiveInt = 12
    data: str | None = None
    levels: Sequence[Literal[1, 2, 3]] = (1, 2, 3)

    def __post_init__(self) -> None:
        self.brief = self.data is None
        levels = tuple(self.levels)
        self.source = OfficeTasks(levels=levels) if self.data is None else ApiBankTasks(self.data, levels)
        super().__post_init__()
