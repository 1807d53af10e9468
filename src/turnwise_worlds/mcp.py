"""``env=mcp``: tasks that the policy solves with tools of Model Context Protocol (MCP) servers, over stdio or HTTP."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from turnwise.data.match_calls import equivalent, same_value
from turnwise.data.tool_schema import check_call, check_tool
from turnwise.data.toolcalls import PARSERS, Format, Reply, ToolCallError
from turnwise.env import EnvironmentFault, Quality, Step, check_tasks, first_tasks
from turnwise.errors import InputError
from turnwise.types import Message, Task, ToolCall, Trajectory
from turnwise_worlds import mcp_boxes, workers
from turnwise_worlds.data_files import Row, read_tasks
from turnwise_worlds.replayed import ReplayedEnv, ReplayedSession
from turnwise_worlds.scripted import Chances, check_quality
from turnwise_worlds.search.retrieval import normalise
from turnwise_worlds.tools import Shown, Tools, answered, opened, played, refusal, templated

# -- servers -----------------------------------------------------------------------------------------------------------


_SLACK = 10.0  # seconds after the MCP client's own time limit until this module no longer waits for a call


class Server(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    command: tuple[str, ...] = ()
    url: str = ""
    variables: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("set either command or url")
        return self


class Connection:
    """A connection to a server, which it starts if the server has a ``command``. Unfit for calls after a ``fault``."""

    def __init__(self, name: str, server: Server, seconds: float) -> None:
        self.name, self.server, self.seconds = name, server, seconds
        self.fault: str | None = None
        self.over = threading.Event()
        self._owner = os.getpid()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (the file lives as long as the server)
        self._up: Future[None] = Future()
        self._stop: asyncio.Event | None = None
        self._client: Any = None
        _open.add(self)
        workers.start(self._hold())
        try:
            self._up.result(seconds + _SLACK)
        except Exception as error:
            raise self._failed(f"cannot be reached ({_first(error)})") from None

    async def _hold(self) -> None:
        from mcp import Client, StdioServerParameters, stdio_client

        self._stop = asyncio.Event()
        with os.fdopen(os.dup(self._log.fileno()), "w", encoding="utf-8") as stderr:
            target: Any = self.server.url
            if self.server.command:
                program, *words = self.server.command
                passed = {name: os.environ[name] for name in self.server.variables if name in os.environ}
                program = sys.executable if program == "python" else program
                target = stdio_client(StdioServerParameters(command=program, args=words, env=passed), errlog=stderr)
            try:
                async with asyncio.timeout(self.seconds) as limit:
                    async with Client(target, read_timeout_seconds=self.seconds) as self._client:
                        limit.reschedule(None)
                        self._up.set_result(None)
                        await self._stop.wait()
            except Exception as error:
                if not self._up.done():
                    self._up.set_exception(error)
            finally:
                _open.discard(self)
                self.over.set()

    def tools(self) -> list[dict[str, Any]]:
        try:
            return workers.run(_listed(self._client), self.seconds + _SLACK, f"server {self.name}")
        except Exception as error:
            raise self._failed(f"cannot list its tools ({_first(error)})") from None

    def call(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Returns the text of a tool's result, and whether the tool failed."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        if self.fault:
            raise EnvironmentFault(self.fault)
        try:
            work = self._client.call_tool(tool, dict(arguments))
            result = workers.run(work, self.seconds + _SLACK, f"server {self.name}")
        except Exception as error:
            if isinstance(error, MCPError) and error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                return str(error), True
            raise self._failed(f"failed at the call of {tool} ({_first(error)})") from None
        except BaseException:  # an interrupt: the server may still be working on the call
            self.close()
            raise
        return "\n".join(map(_text, result.content)), bool(result.is_error)

    def close(self) -> None:
        self.fault = self.fault or f"server {self.name}: the connection was closed"
        if os.getpid() == self._owner and self._stop is not None:  # a fork must not end a server of its parent
            workers.soon(self._stop.set)

    def _failed(self, what: str) -> EnvironmentFault:
        self.fault = f"server {self.name} {what}; the last lines of its log: {workers.tail(self._log, 4)}"
        self.close()
        return EnvironmentFault(self.fault)


_open: set[Connection] = set()  # connections whose servers may still run


@atexit.register
def _end_all() -> None:
    ending = [connection for connection in _open if connection._owner == os.getpid()]
    for connection in ending:
        connection.close()
    deadline = time.monotonic() + 8.0
    for connection in ending:
        connection.over.wait(max(0.0, deadline - time.monotonic()))


async def _listed(client: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            listed.append({"type": "function", "function": function})
        if not (cursor := page.next_cursor):
            return listed


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _text(block: Any) -> str:
    return str(block.text) if block.type == "text" else f"[{block.type}]"


# -- tasks -------------------------------------------------------------------------------------------------------------


_NUMBER = re.compile(r"([-+\u2212]?)[$\u20ac\u00a3]?((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)\s*(%?)", re.ASCII)
_AROUND = " \t\r\n*_`'\"()[]!?:;,"  # characters that may surround a number


class Call(BaseModel):
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
            return same_value(json.loads(text), json.loads(self.result))
        except (ValueError, RecursionError):
            return text.split() == self.result.split()


class Problem(Row):
    """One record of a task file. docs/environments.md explains the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    subset: str = ""
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


def problem_of(task: Task) -> Problem:
    try:
        return Problem.model_validate({"id": task.id, **task.data})
    except ValidationError as error:
        raise InputError(f"task {task.id}: {error}") from None


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
        self._tools = env.shown_tools()
        self._connections: dict[str, Connection] = {}
        self._set_up = not problem.setup
        self._closed = False

    @property
    def tools(self) -> Tools:
        return self._tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        return opened(self.env.system, self._tools, self.form, self.problem.prompt)

    def act(self, text: str) -> Step:
        """Makes the calls in a reply in order. A reply without calls ends the episode."""
        try:
            reply = read_reply(text, self.form, self._tools)
        except ToolCallError as error:
            return self._told([refusal(error)], admissible=False)
        if reply.calls:
            return self._told([self._called(call) for call in reply.calls], admissible=True)
        right, check = self.problem.answered(reply.content), self.problem.check
        won = right and (check is None or check.holds(self._own(check, "check")))
        return Step("", float(won), True, won, {"admissible": True, "answered": right})

    def close(self) -> None:
        self._closed = True
        for connection in list(self._connections.values()):
            connection.close()

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
        name = self.env.holder(call.name)
        if name not in self._connections:
            self._connections[name] = self.env.connect(name)
        if self._closed:  # another thread closed the episode, perhaps before it could see the new connection
            self.close()
        return self._connections[name].call(call.name, call.arguments)

    def _own(self, call: Call, key: str) -> str:
        text, failed = self._live(call.made())
        if failed:
            raise InputError(f"{self.where}: {key}: the call of {call.name} failed ({text}); correct the task")
        return text


_CLOSING = "Done."  # the expert's last reply if a task has no answer


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
        horizon: PositiveInt = 10,
        format: Format = "hermes",  # noqa: A002 - the configuration uses this name
        system: str | None = None,
        shown: Shown = 2000,
        timeout: PositiveFloat = 60.0,
        together: PositiveInt | None = 64,
        mistakes: Mistakes | None = None,
    ) -> None:
        self._servers = {name: _server(name, given) for name, given in servers.items() if given is not None}
        if not self._servers:
            raise ValueError("servers: give at least one, such as +env.servers.mine.command=[python,server.py]")
        self.together, self.horizon, self.format = together, horizon, format
        self.system, self.shown, self.timeout = system or "", shown, timeout
        self.mistakes = mistakes or Mistakes()
        self.reached = repr(self._servers)
        self.file = None if file is None else str(file)
        self._read = None if file is None else read_tasks(file, "env.file", Problem)
        self._holders: dict[str, str] = {}  # tool -> the server that has it
        self._tools: Tools = ()
        self._lock = threading.Lock()

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        check_tasks(split, count)
        if self._read is None:
            return mcp_boxes.tasks(self.name, split, count, seed)
        own = ("id", "split", "subset")
        found = [
            Task(self.name, row.id, split, {key: value for key, value in record.items() if key not in own}, row.subset)
            for row, record in self._read
            if row.split == split
        ]
        return first_tasks(found, count, f"split {split} of {self.file}")

    def open_episode(self, task: Task) -> McpEpisode:
        return McpEpisode(self, problem_of(task), f"task {task.id}")

    def connect(self, name: str) -> Connection:
        return Connection(name, self._servers[name], self.timeout)

    def shown_tools(self) -> Tools:
        """Returns the tools that the policy may call. Only the first call asks the servers."""
        with self._lock:
            if not self._holders:
                self._tools = tuple(tool for name in self._servers for tool in self._listed(name))
            return self._tools

    def holder(self, tool: str) -> str:
        if tool not in self._holders:
            raise InputError(f"env.servers: no server has the tool {tool!r}, which a task calls")
        return self._holders[tool]

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
        """Accepts the expert's tool calls (a rule of this project) or, if neither makes one, the right answer."""
        tools = self.shown_tools()
        try:
            made, shown = (read_reply(text, self.format, tools) for text in (action, expert))
        except ToolCallError:
            return False
        if made.calls or shown.calls:
            return equivalent(made.calls, shown.calls, tools)
        return problem_of(session.task).answered(made.content)

    def _listed(self, name: str) -> Tools:
        server, place = self._servers[name], f"env.servers.{name}"
        if find_spec("mcp") is None:
            raise InputError("env=mcp needs the package mcp, which is not installed here; `make mcp` installs it")
        if server.command and server.command[0] != "python" and shutil.which(server.command[0]) is None:
            raise InputError(f"{place}.command: there is no program {server.command[0]!r} on this machine; install it")
        try:
            connection = self.connect(name)
            tools = {str(tool["function"]["name"]): tool for tool in connection.tools()}
        except EnvironmentFault as error:
            raise InputError(f"{place}: {error}") from error
        connection.close()
        for tool in tools.values():
            if problem := check_tool(tool):
                raise InputError(f"{place}: {problem}")
        chosen = tools if server.tools is None else server.tools
        if missing := [word for word in chosen if word not in tools]:
            raise InputError(f"{place}.tools: the server has no tool {missing[0]!r}; it has {', '.join(tools)}")
        for word in tools:
            if (other := self._holders.setdefault(word, name)) != name and word in chosen:
                raise InputError(f"env.servers: {other} and {name} both have a tool {word!r}; limit {place}.tools")
        return tuple(tools[word] for word in chosen)

    def _replies(
        self, problem: Problem, session: ReplayedSession, rng: random.Random | None
    ) -> Iterator[tuple[Sequence[ToolCall], str]]:
        calls = [call.made() for call in problem.calls or ()]
        for place, call in enumerate(calls):
            spare = self.horizon - len(session.taken) > len(calls) + 1 - place
            if rng is not None and spare and (wrong := self._mistake(call, rng)) is not None:
                yield [wrong], ""
            yield [call], ""
        yield [], next(iter(problem.answers), _CLOSING)

    def _mistake(self, call: ToolCall, rng: random.Random) -> ToolCall | None:
        drawn = self.mistakes.drawn(rng.random())
        if drawn == "unknown":
            return ToolCall(f"{call.name}_all", call.arguments)
        schemas = (each["function"] for each in self.shown_tools() if each["function"]["name"] == call.name)
        required = [name for tool in schemas for name in tool["parameters"].get("required") or ()]
        if drawn == "missing" and (required := [name for name in required if name in call.arguments]):
            left_out = rng.choice(required)
            return ToolCall(call.name, {name: value for name, value in call.arguments.items() if name != left_out})
        return None


def _server(name: str, given: Mapping[str, Any]) -> Server:
    try:
        return Server.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, ('servers', name, *first['loc'])))}: {first['msg']}") from None
