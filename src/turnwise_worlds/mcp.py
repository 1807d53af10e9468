"""``env=mcp``: tasks that the policy solves with the tools of a Model Context Protocol (MCP) server, over stdio or HTTP."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, PositiveFloat, PositiveInt, ValidationError, model_validator

from turnwise.data.match_calls import match_calls, same_value
from turnwise.data.tool_schema import check_tool, misfits, tool_of
from turnwise.data.toolcalls import PARSERS, Format, ToolCallError, parsed
from turnwise.env import EnvironmentFault, Step, check_tasks, first_tasks
from turnwise.errors import InputError
from turnwise.types import Message, Task
from turnwise_worlds import workers
from turnwise_worlds.data_files import TaskRow, read_tasks
from turnwise_worlds.replayed_episodes import ReplayedEnv, ReplayedSession
from turnwise_worlds.tool_environment import Shown, Tools, answer_messages, opening_messages, refusal, templated
from turnwise_worlds.workspace import cut

T = TypeVar("T")
_SLACK = 10.0  # seconds after the MCP client's own time limit until this module no longer waits for an answer
_ENDING = 8.0  # seconds for which the end of the program waits for the servers


class McpConnection:
    """A connection to the server of an environment, which starts a server of its own over stdio."""

    def __init__(self, env: McpEnv) -> None:
        self.env, self._wait = env, env.timeout + _SLACK
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (the file lives as long as the server)
        self._client: Future[Any] = Future()
        self._stop = asyncio.Event()
        self.over = workers.start(self._hold())  # done when the server has ended
        _open.add(self)
        self.over.add_done_callback(lambda _: _open.discard(self))
        try:
            self._client.result(self._wait)
        except Exception as error:
            raise self._failed("cannot be reached", error) from None

    async def _hold(self) -> None:
        from mcp import Client

        with os.fdopen(os.dup(self._log.fileno()), "w", encoding="utf-8") as log:
            try:
                async with asyncio.timeout(self.env.timeout) as limit:
                    async with Client(self.env.reach(log), read_timeout_seconds=self.env.timeout) as client:
                        limit.reschedule(None)
                        self._client.set_result(client)
                        await self._stop.wait()
            except Exception as error:
                if not self._client.done():
                    self._client.set_exception(error)

    def ask(self, question: Callable[[Any], Coroutine[Any, Any, T]], what: str) -> T:
        """Returns the server's answer. ``question`` takes the MCP client."""
        try:
            return workers.run_on_worker_loop(question(self._client.result()), self._wait, "the MCP server")
        except Exception as error:
            raise self._failed(f"failed at {what}", error) from None

    def close(self) -> None:
        if self in _open:
            workers.soon(self._stop.set)

    def _failed(self, what: str, error: BaseException) -> EnvironmentFault:
        self.close()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        why = f"{type(error).__name__}: {error}"
        return EnvironmentFault(f"the MCP server {what} ({why}); the end of its log: {workers.tail(self._log, 4)}")


_open: set[McpConnection] = set()  # connections whose servers may still run
os.register_at_fork(after_in_child=_open.clear)  # a fork must not end a server of its parent


@atexit.register
def _end_all() -> None:
    ending = list(_open)
    for connection in ending:
        connection.close()
    wait([connection.over for connection in ending], _ENDING)


async def list_tools(client: Any) -> dict[str, Mapping[str, Any]]:
    """Returns the server's tools by name, as chat templates expect them."""
    page = await client.list_tools()
    listed = [*page.tools]
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        listed += page.tools
    return {tool.name: tool_of(tool.name, tool.description or "", tool.input_schema) for tool in listed}


async def call_tool(client: Any, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    try:
        result = await client.call_tool(name, dict(arguments))
    except MCPError as error:
        if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
            raise
        return str(error), True
    texts = (str(block.text) if block.type == "text" else f"[{block.type}]" for block in result.content)
    return "\n".join(texts), bool(result.is_error)


_AROUND = " \t\r\n*_`'\"()[]!?:;,"  # characters that may surround an answer


class Check(BaseModel, extra="forbid"):  # a call at the end of an episode, and its required result
    name: str
    arguments: dict[str, Any] = {}
    result: str


Texts = Annotated[tuple[str, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given or ())]


class Problem(TaskRow, extra="forbid"):
    """One record of a task file. docs/environments.md explains the fields."""

    subset: str = ""
    prompt: str
    answer: Texts = ()
    check: Check | None = None

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        if not (self.check or self.answer) or not all(map(_bare, self.answer)):
            raise ValueError("the task needs an answer that is not empty, or a check, so that it can be judged")
        return self

    def answered(self, text: str) -> bool:
        return not self.answer or any(same(_bare(text), _bare(answer)) for answer in self.answer)


def same(text: str, expected: str) -> bool:
    """Whether two texts are equal as JSON values; if one of them is no JSON, whether they have the same words."""
    try:
        return same_value(json.loads(text), json.loads(expected))
    except (ValueError, RecursionError):
        return text.split() == expected.split()


def _bare(text: str) -> str:
    return text.strip(_AROUND).removesuffix(".").strip(_AROUND).casefold()


def problem_of(task: Task) -> Problem:
    try:
        return Problem.model_validate({"id": task.id, **task.data})
    except ValidationError as error:
        raise InputError(f"task {task.id}: {error}") from None


class McpEpisode:
    """A running episode, which connects to the server at its first call."""

    def __init__(self, env: McpEnv, task: Task) -> None:
        self.env, self.task, self.problem, self.form = env, task, problem_of(task), env.format
        self._connection: McpConnection | None = None

    @property
    def tools(self) -> Tools:
        return self.env.tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        return opening_messages(self.env.system, self.env.tools, self.form, self.problem.prompt)

    def act(self, text: str) -> Step:
        """Makes the calls in a reply in order. A reply without calls ends the episode."""
        try:
            reply = PARSERS[self.form](text, self.env.tools)
            for call in reply.calls:
                if problems := misfits(call, self.env.tools):
                    raise ToolCallError("; ".join(problems))
            if not (reply.calls or reply.content):
                raise ToolCallError("the reply is empty")
        except ToolCallError as error:
            return self._told([refusal(error)], admissible=False)
        if reply.calls:
            return self._told([self._shown(call.name, call.arguments) for call in reply.calls], admissible=True)
        right = self.problem.answered(reply.content)
        won = right and self._in_order()
        return Step("", float(won), True, won, {"admissible": True, "answered": right})

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _told(self, results: list[str], admissible: bool) -> Step:
        return Step("\n".join(results), info={"admissible": admissible}, messages=answer_messages(results, self.form))

    def _shown(self, name: str, arguments: Mapping[str, Any]) -> str:
        text, failed = self._call(name, arguments)
        return cut(f"Error: {text}" if failed and not text.startswith("Error") else text, self.env.shown)

    def _in_order(self) -> bool:
        if (check := self.problem.check) is None:
            return True
        text, failed = self._call(check.name, check.arguments)
        if failed:
            raise InputError(f"task {self.task.id}: check: the call of {check.name} failed ({text}); correct the task")
        return same(text, check.result)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        if self._connection is None:
            self._connection = McpConnection(self.env)
        return self._connection.ask(lambda client: call_tool(client, name, arguments), f"the call of {name}")


class McpEnv(ReplayedEnv):
    """Tasks for the tools of an MCP server. ``conf/env/mcp.yaml`` explains the arguments."""

    name = "mcp"

    def __init__(
        self,
        file: str | Path | None = None,
        command: Sequence[str] | None = None,
        url: str | None = None,
        variables: Sequence[str] = (),
        tools: Sequence[str] | None = None,
        horizon: PositiveInt = 10,
        format: Format = "hermes",  # noqa: A002 - the configuration uses this name
        system: str | None = None,
        shown: Shown = 2000,
        timeout: PositiveFloat = 60.0,
        together: PositiveInt | None = 64,
    ) -> None:
        if file is None or bool(command) == bool(url):
            raise InputError("env=mcp: set env.file, and either env.command (such as [python,server.py]) or env.url")
        self.command, self.url, self.variables, self.offered = command, url, variables, tools
        self.horizon, self.format, self.system, self.shown = horizon, format, system or "", shown
        self.timeout, self.together = timeout, together
        self._rows = read_tasks(file, "env.file", Problem)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        check_tasks(split, count)
        rows = [(row, record) for row, record in self._rows if row.split == split]
        tasks = [Task(self.name, row.id, split, record, row.subset) for row, record in rows]
        return first_tasks(tasks, count, f"split {split} of env.file")

    def open_episode(self, task: Task) -> McpEpisode:
        return McpEpisode(self, task)

    @cached_property
    def tools(self) -> Tools:
        """The tools that the policy may call. The first use asks the server."""
        if find_spec("mcp") is None:
            raise InputError("env=mcp needs the package mcp, which is not installed here; `make mcp` installs it")
        connection = McpConnection(self)
        tools = connection.ask(list_tools, "the list of its tools")
        connection.close()
        for name, tool in tools.items():
            if problem := check_tool(tool):
                raise InputError(f"env=mcp: the server's tool {name} cannot be used: {problem}")
        chosen = tools if self.offered is None else self.offered
        if missing := [name for name in chosen if name not in tools]:
            raise InputError(f"env.tools: the server has no tool {missing[0]!r}; it has {', '.join(tools)}")
        return tuple(tools[name] for name in chosen)

    def accepts(self, session: ReplayedSession, action: str, expert: str) -> bool:
        """Accepts the expert's tool calls (a rule of this project) or, if neither makes one, the right answer."""
        made, shown = (parsed(text, self.format, self.tools) for text in (action, expert))
        if made is None or shown is None:
            return False
        if made.calls or shown.calls:
            return match_calls(made.calls, shown.calls, self.tools)
        return bool(made.content) and problem_of(session.task).answered(made.content)

    def reach(self, log: IO[str]) -> Any:
        """Returns the server's URL, or the MCP client's transport to a process that writes to ``log``."""
        from mcp import StdioServerParameters, stdio_client

        if not self.command:
            return self.url
        program, *words = [sys.executable, *self.command[1:]] if self.command[0] == "python" else self.command
        passed = {name: os.environ[name] for name in self.variables if name in os.environ}
        return stdio_client(StdioServerParameters(command=program, args=words, env=passed), errlog=log)
