"""The MCP servers of a run: their settings, and the connections to them, over stdio or HTTP."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict

from turnwise.data.tool_schema import check_tool
from turnwise.env import EnvironmentFault
from turnwise.errors import InputError
from turnwise_worlds import workers
from turnwise_worlds.tools import Tools

_SLACK = 10.0  # seconds after the MCP client's own time limit until this module no longer waits for a call
_PAGES = 100  # maximum number of pages in which a server may send the list of its tools


class Server(BaseModel):
    """The settings of one MCP server. ``conf/env/mcp.yaml`` explains the keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    command: tuple[str, ...] = ()
    url: str = ""
    folder: str | None = None
    variables: tuple[str, ...] = ()
    reset: str | None = None
    tools: tuple[str, ...] | None = None


class Connection:
    """A connection to a server, which it starts if the server has a ``command``. Unfit for calls after a ``fault``."""

    def __init__(self, name: str, server: Server, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        self.fault: str | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (the file lives as long as the server)
        held = self._held = _Held()
        _open.add(held)
        workers.start(_hold(held, server, seconds, self._log.fileno()))
        self._close = weakref.finalize(self, _stop, held, os.getpid())
        try:
            held.up.result(seconds + _SLACK)
        except Exception as error:
            raise self._failed(f"cannot be reached ({_first(error)})") from None

    def tools(self) -> list[dict[str, Any]]:
        try:
            return workers.run(_listed(self._held.client), self.seconds + _SLACK, f"server {self.name}")
        except Exception as error:
            raise self._failed(f"cannot list its tools ({_first(error)})") from None

    def call(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        if self.fault:
            raise EnvironmentFault(self.fault)
        try:
            work = self._held.client.call_tool(tool, dict(arguments))
            result = workers.run(work, self.seconds + _SLACK, f"server {self.name}")
        except Exception as error:
            if isinstance(error, MCPError) and error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                return str(error), True
            raise self._failed(f"failed at the call of {tool} ({_first(error)})") from None
        except BaseException:  # an interrupt: the server may still be working on the call
            self.close()
            raise
        return _text(result), bool(result.is_error)

    def close(self) -> None:
        self.fault = self.fault or f"server {self.name}: the connection was closed"
        self._close()

    def _failed(self, what: str) -> EnvironmentFault:
        log = self._log.fileno()
        lines = os.pread(log, 4096, max(0, os.fstat(log).st_size - 4096)).decode(errors="replace").split("\n")
        self.fault = f"server {self.name} {what}; the last lines of its log: {' | '.join(lines[-4:]).strip(' |')}"
        self._close()
        return EnvironmentFault(self.fault)


class _Held:
    """What the coroutine :func:`_hold` shares with its connection, which can be garbage-collected meanwhile."""

    def __init__(self) -> None:
        self.up: Future[None] = Future()
        self.client: Any = None
        self.stop: asyncio.Event | None = None
        self.over = threading.Event()
        self.owner = os.getpid()


async def _hold(held: _Held, server: Server, seconds: float, log: int) -> None:
    from mcp import Client, StdioServerParameters, stdio_client

    held.stop = asyncio.Event()
    with os.fdopen(os.dup(log), "w", encoding="utf-8") as stderr:
        target: Any = server.url
        if server.command:
            program, *words = server.command
            passed = {name: os.environ[name] for name in server.variables if name in os.environ}
            program = sys.executable if program == "python" else program
            started = StdioServerParameters(command=program, args=words, env=passed, cwd=server.folder)
            target = stdio_client(started, errlog=stderr)
        try:
            async with asyncio.timeout(None) as limit:
                limit.reschedule(asyncio.get_running_loop().time() + seconds)
                async with Client(target, read_timeout_seconds=seconds) as held.client:
                    limit.reschedule(None)
                    held.up.set_result(None)
                    await held.stop.wait()
        except Exception as error:
            if not held.up.done():
                held.up.set_exception(error)
        finally:
            _open.discard(held)
            held.over.set()


def _stop(held: _Held, owner: int) -> None:
    if os.getpid() == owner and (stop := held.stop) is not None:  # a forked copy must not end a server of its parent
        workers.soon(stop.set)


_open: set[_Held] = set()


@atexit.register
def _end_all() -> None:
    ending = [held for held in list(_open) if held.owner == os.getpid()]
    for held in ending:
        _stop(held, held.owner)
    deadline = time.monotonic() + 8.0
    for held in ending:
        held.over.wait(max(0.0, deadline - time.monotonic()))


async def _listed(client: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    cursor = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            listed.append({"type": "function", "function": function})
        cursor = page.next_cursor
        if not cursor:
            return listed
    raise ValueError(f"the list of tools has more than {_PAGES} pages")


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _text(result: Any) -> str:
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)


def _part(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource":
        return str(getattr(block.resource, "text", f"[{block.resource.uri}]"))
    return f"[{block.uri}]" if block.type == "resource_link" else f"[{block.type} {block.mime_type}]"


class Servers:
    """All servers of a run. A server with a ``reset`` tool serves one episode after the other."""

    def __init__(self, servers: Mapping[str, Server], seconds: float) -> None:
        self.servers, self.seconds = dict(servers), seconds
        self._idle: dict[str, deque[Connection]] = {name: deque() for name in servers}
        self._lock = threading.Lock()
        self._holders: dict[str, str] = {}  # tool -> the server that has it
        self._shown: Tools = ()

    def shown(self) -> Tools:
        """Returns the tools that the policy may call. Only the first call asks the servers."""
        with self._lock:
            if not self._holders:
                self._shown = tuple(tool for name in self.servers for tool in self._listed(name))
            return self._shown

    def holder(self, tool: str) -> str:
        self.shown()
        if tool not in self._holders:
            raise InputError(f"env.servers: no server has the tool {tool!r}, which a task calls")
        return self._holders[tool]

    def take(self, name: str) -> Connection:
        reset = self.servers[name].reset
        while reset and self._idle[name]:
            try:
                connection = self._idle[name].pop()
            except IndexError:  # another thread took the last connection
                break
            if not connection.fault:
                text, failed = connection.call(reset, {})
                if failed:
                    connection.close()
                    raise EnvironmentFault(f"server {name}: the reset tool {reset} failed: {text}")
                return connection
        return Connection(name, self.servers[name], self.seconds)

    def give(self, name: str, connection: Connection, busy: bool = False) -> None:
        """Takes a connection back. ``busy``: a call may still be running, so no later episode may use the server."""
        if self.servers[name].reset and not connection.fault and not busy:
            self._idle[name].append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()

    def _listed(self, name: str) -> Tools:
        server, place = self.servers[name], f"env.servers.{name}"
        if find_spec("mcp") is None:
            raise InputError("env=mcp needs the package mcp, which is not installed here; `make mcp` installs it")
        if server.command and server.command[0] != "python" and shutil.which(server.command[0]) is None:
            raise InputError(f"{place}.command: there is no program {server.command[0]!r} on this machine; install it")
        try:
            connection = Connection(name, server, self.seconds)
            tools = {str(tool["function"]["name"]): tool for tool in connection.tools()}
        except EnvironmentFault as error:
            raise InputError(f"{place}: {error}") from error
        self.give(name, connection)
        for tool in tools.values():
            if problem := check_tool(tool):
                raise InputError(f"{place}: {problem}")
        for key, wanted in (("tools", server.tools or ()), ("reset", [server.reset] if server.reset else [])):
            if missing := [word for word in wanted if word not in tools]:
                raise InputError(f"{place}.{key}: the server has no tool {missing[0]!r}; it has {', '.join(tools)}")
        chosen = [word for word in (tools if server.tools is None else server.tools) if word != server.reset]
        for word in tools:
            if (other := self._holders.setdefault(word, name)) != name and word in chosen:
                raise InputError(f"env.servers: {other} and {name} both have a tool {word!r}; limit {place}.tools")
        return tuple(tools[word] for word in chosen)
