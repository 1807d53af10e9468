"""``env=mcp``: tasks that the policy solves with tools of Model Context Protocol (MCP) servers."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turnwise.data.match_calls import equivalent
from turnwise.data.tool_schema import check_call
from turnwise.data.toolcalls import PARSERS, Format, Reply, ToolCallError
from turnwise.env import (
    SPLITS,
    EnvironmentFault,
    Quality,
    Step,
    check_horizon,
    check_tasks,
    first_tasks,
)
from turnwise.errors import InputError
from turnwise.types import Message, Task, ToolCall, Trajectory
from turnwise_worlds.data_files import read_data_file
from turnwise_worlds.mcp import example_tasks
from turnwise_worlds.mcp.servers import Connection, Server, Servers
from turnwise_worlds.replayed import ReplayedEnv, ReplayedSession
from turnwise_worlds.scripted import Chances, check_quality
from turnwise_worlds.search.retrieval import normalise
from turnwise_worlds.tools import Tools, answered, check_format, check_shown, opened, played, refusal, templated

_NUMBER = re.compile(r"([-+\u2212]?)[$\u20ac\u00a3]?((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)\s*(%?)", re.ASCII)
_AROUND = " \t\r\n*_`'\"()[]!?:;,"  # characters that may surround a number


class Call(BaseModel):
    """A tool call in a task file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)

    def made(self) -> ToolCall:
        return ToolCall(self.name, self.arguments)


class Check(Call):
    """A call at the end of an episode and its right result: equal as JSON, else equal in its words."""

    result: str

    def holds(self, text: str) -> bool:
        try:
            return _alike(json.loads(text), json.loads(self.result))
        except (ValueError, RecursionError):
            return text.split() == self.result.split()


class Problem(BaseModel):
    """The content of one task. docs/environments.md explains the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    prompt: str
    setup: tuple[Call, ...] = ()
    answer: str | tuple[str, ...] | None = None
    check: Check | None = None
    calls: tuple[Call, ...] | None = None

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        if not self.answers and self.check is None:
            raise ValueError("the task has neither answer nor check, so it cannot be judged; add one of them")
        if not all(map(normalise, self.answers)):
            raise ValueError("an answer contains no word or number to compare a reply with")
        return self

    @property
    def answers(self) -> tuple[str, ...]:
        return () if self.answer is None else (self.answer,) if isinstance(self.answer, str) else self.answer

    def answered(self, text: str) -> bool:
        """Returns whether a reply gives a right answer: a number must be alone, other texts are normalised as in SQuAD."""
        return not self.answers or any(_says(text, answer) for answer in self.answers)


def _says(text: str, answer: str) -> bool:
    expected = _number(answer)
    return normalise(text) == normalise(answer) if expected is None else _number(text) == expected


def _number(text: str) -> tuple[Decimal, str] | None:
    match = _NUMBER.fullmatch(text.strip(_AROUND).removesuffix(".").strip(_AROUND))
    if match is None:
        return None
    sign, digits, unit = match.groups()
    value = Decimal(digits.replace(",", ""))
    return (value if sign in ("", "+") else -value), unit


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


class Row(Problem):
    """A record of a task file."""

    id: str = Field(min_length=1)
    split: Literal["train", "seen", "unseen"]
    subset: str = ""


def problem_of(task: Task) -> Problem:
    try:
        return Problem.model_validate(task.data)
    except ValidationError as error:
        raise InputError(f"task {task.id}: {error}") from None


def read_tasks(path: str | Path, env: str) -> dict[str, list[Task]]:
    """Returns the tasks in a file: split -> its tasks. A record has ``id``, ``split``, ``subset`` and a problem's fields."""
    tasks: dict[str, Task] = {}
    for place, record in read_data_file(path, "env.file"):
        try:
            row = Row.model_validate(record)
        except ValidationError as error:
            raise InputError(f"{place}: {error}") from None
        if row.id in tasks:
            raise InputError(f"{place}: the id {row.id!r} occurs twice; rename one")
        data = {key: value for key, value in record.items() if key not in ("id", "split", "subset")}
        tasks[row.id] = Task(env, row.id, row.split, data, row.subset)
    if not tasks:
        raise InputError(f"{path}: the file contains no task; set env.file to a file with one task per record")
    return {split: [task for task in tasks.values() if task.split == split] for split in SPLITS}


def read_reply(text: str, form: Format, tools: Tools) -> Reply:
    """Parses a reply; raises a ``ToolCallError`` if it is empty or has a call that does not fit its tool."""
    reply = PARSERS[form](text, tools)
    if not (reply.calls or reply.content):
        raise ToolCallError("the reply is empty")
    for call in reply.calls:
        if problems := check_call({"name": call.name, "arguments": call.arguments}, tools):
            raise ToolCallError("; ".join(problems))
    return reply


class McpEpisode:
    """A running episode, which connects to a server at the first call of one of its tools."""

    def __init__(self, env: McpEnv, problem: Problem, where: str) -> None:
        self.env, self.problem, self.where, self.form = env, problem, where, env.format
        self._tools = env.servers.shown()
        self._connections: dict[str, Connection] = {}
        self._set_up = not problem.setup
        self._acting = self._closed = False
        self._lock = threading.Lock()

    @property
    def tools(self) -> Tools:
        return self._tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        return opened(self.env.system, self._tools, self.form, self.problem.prompt)

    def act(self, text: str) -> Step:
        """Makes the calls in a reply in order. A reply without calls ends the episode."""
        with self._lock:
            self._check_open()
            self._acting = True
        try:
            return self._acted(text)
        finally:
            self._acting = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections, self._connections = self._connections, {}
        for name, connection in connections.items():
            self.env.servers.give(name, connection, self._acting)

    def _acted(self, text: str) -> Step:
        try:
            reply = read_reply(text, self.form, self._tools)
        except ToolCallError as error:
            return self._told([refusal(error)], admissible=False)
        if reply.calls:
            return self._told([self._called(call) for call in reply.calls], admissible=True)
        right, check = self.problem.answered(reply.content), self.problem.check
        won = right and (check is None or check.holds(self._own(check, "check")))
        return Step("", float(won), True, won, {"admissible": True, "answered": right})

    def _told(self, results: list[str], admissible: bool) -> Step:
        return Step("\n".join(results), info={"admissible": admissible}, messages=answered(results, self.form))

    def _called(self, call: ToolCall) -> str:
        text, failed = self._live(call)
        text, most = (f"Error: {text}" if failed and not text.startswith("Error") else text), self.env.shown
        return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"

    def _live(self, call: ToolCall) -> tuple[str, bool]:
        if not self._set_up:
            self._set_up = True
            for each in self.problem.setup:
                self._own(each, "setup")
        name = self.env.servers.holder(call.name)
        connection = self._connections.get(name)
        if connection is None:
            connection = self.env.servers.take(name)
            with self._lock:
                if not self._closed:
                    self._connections[name] = connection
        if self._closed:
            self.env.servers.give(name, connection)
            self._check_open()
        return connection.call(call.name, call.arguments)

    def _check_open(self) -> None:
        if self._closed:
            raise EnvironmentFault(f"{self.where}: the episode was closed")

    def _own(self, call: Call, key: str) -> str:
        text, failed = self._live(call.made())
        if failed:
            raise InputError(f"{self.where}: {key}: the call of {call.name} failed ({text}); correct the task")
        return text


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """The clumsy expert's mistakes before a correct call. Such calls are refused before a server sees them."""

    unknown: float = 0.1  # makes the call with a tool name that does not exist
    missing: float = 0.1  # makes the call without one of the required arguments


class McpEnv(ReplayedEnv):
    """Tasks for the tools of MCP servers. ``conf/env/mcp.yaml`` explains the arguments."""

    name = "mcp"

    def __init__(
        self,
        servers: Mapping[str, Mapping[str, Any] | None],
        file: str | Path | None = None,
        horizon: int = 10,
        format: str = "hermes",  # noqa: A002 - the configuration uses this name
        system: str | None = None,
        closing: str = "Done.",
        shown: int = 2000,
        timeout: float = 60.0,
        together: int | None = 64,
        mistakes: Mistakes | None = None,
    ) -> None:
        check_shown(shown)
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout} s; it must be above 0")
        if together is not None and together < 1:
            raise ValueError(f"together: must be at least 1, got {together}")
        named = {name: _server(name, given) for name, given in servers.items() if given is not None}
        if not named:
            raise ValueError("servers: give at least one, such as +env.servers.mine.command=[python,server.py]")
        self.together, self.horizon, self.format = together, check_horizon(horizon), check_format(format)
        self.system, self.closing, self.shown = system or "", closing, shown
        self.mistakes = mistakes or Mistakes()
        self.reached = repr(named)
        self.file = None if file is None else str(file)
        self._read = None if file is None else read_tasks(file, self.name)
        self.servers = Servers(named, timeout)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        check_tasks(split, count)
        if self._read is None:
            return example_tasks.tasks(self.name, split, count, seed)
        return first_tasks(self._read.get(split, []), count, f"split {split} of {self.file}")

    def open_episode(self, task: Task) -> McpEpisode:
        return McpEpisode(self, problem_of(task), f"task {task.id}")

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """Makes the calls that the task lists, and answers. The clumsy expert errs before some of these calls."""
        session = self.reset(task)
        problem = problem_of(task)
        if problem.calls is None:
            raise InputError(
                f"task {task.id}: its record lists no tool calls (`calls`), so it cannot be demonstrated; set data.file "
                "to trajectories, or choose a method that needs no demonstrations (method=grpo, method=trace)"
            )
        rng = random.Random(f"{seed}/{task.id}") if check_quality(quality) == "clumsy" else None
        return played(session, self._replies(problem, session, rng), self.format, quality, seed)

    def accepts(self, session: ReplayedSession, action: str, expert: str) -> bool:
        """Returns whether ``action`` makes the tool calls of the expert's reply (a rule of this project).

        If neither reply makes a call, ``action`` is accepted if it gives the right answer of the task.
        """
        tools = self.servers.shown()
        try:
            made, shown = (read_reply(text, self.format, tools) for text in (action, expert))
        except ToolCallError:
            return False
        if made.calls or shown.calls:
            return equivalent(made.calls, shown.calls, tools)
        return problem_of(session.task).answered(made.content)

    def close(self) -> None:
        self.servers.close()

    def _replies(
        self, problem: Problem, session: ReplayedSession, rng: random.Random | None
    ) -> Iterator[tuple[Sequence[ToolCall], str]]:
        calls = [call.made() for call in problem.calls or ()]
        for place, call in enumerate(calls):
            spare = self.horizon - len(session.taken) > len(calls) + 1 - place
            if rng is not None and spare and (wrong := self._mistake(call, rng)) is not None:
                yield [wrong], ""
            yield [call], ""
        yield [], next(iter(problem.answers), self.closing)

    def _mistake(self, call: ToolCall, rng: random.Random) -> ToolCall | None:
        drawn = self.mistakes.drawn(rng.random())
        if drawn == "unknown":
            return ToolCall(f"{call.name}_all", call.arguments)
        schemas = (each["function"] for each in self.servers.shown() if each["function"]["name"] == call.name)
        required = [name for tool in schemas for name in tool["parameters"].get("required") or ()]
        if drawn == "missing" and (required := [name for name in required if name in call.arguments]):
            left_out = rng.choice(required)
            return ToolCall(call.name, {name: value for name, value in call.arguments.items() if name != left_out})
        return None


def _server(name: str, given: Mapping[str, Any]) -> Server:
    try:
        server = Server.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"servers.{name}.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if bool(server.command) == bool(server.url) or (server.url and server.reset):
        raise ValueError(f"servers.{name}: set either command or url, and reset only with command")
    return server
