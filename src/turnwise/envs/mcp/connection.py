"""Connects to one MCP server: a process that this module starts (stdio), or a server at an HTTP address."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from turnwise.envs import workers
from turnwise.envs.environment import EnvironmentFault

_SLACK = 10.0  # seconds after the MCP client's own time limit until this module no longer waits for a call
_PAGES = 100  # maximum number of pages in which a server may send the list of its tools
# Time limit in s for ending the servers when this process ends. The package mcp waits 2 s for a server, then ends the
# server, and kills it 2 s later.
_END = 8.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a tool to one call."""

    text: str
    failed: bool = False  # whether the tool reports an error


class Connection:
    """An open connection to one MCP server. Several threads may make calls over the connection at once.

    Args:
        name: the name of the server, for error messages.
        command: the command that starts the server, without a sandbox. The first word ``python`` means the interpreter
            of this process. Empty if there is a ``url``.
        url: the address of a server over streamable HTTP.
        folder: the working folder of the command.
        variables: names of environment variables that the server inherits, in addition to the few variables that the
            MCP client always passes on, such as PATH and HOME.
        seconds: time limit of the server's start and of each of its answers.

    Raises:
        EnvironmentFault: the server cannot be started or reached.
    """

    def __init__(
        self, name: str, command: Sequence[str], url: str, folder: str | None, variables: Sequence[str], seconds: float
    ) -> None:
        self.name, self.seconds = name, seconds
        self.fault: str | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (the file lives as long as the server)
        held = _Held()
        self._held = held
        _open.add(held)
        workers.start(_hold(held, command, url, folder, variables, seconds, self._log.fileno()))
        self._close = weakref.finalize(self, _stop, held, os.getpid())
        try:
            held.up.result(seconds + _SLACK)
        except Exception as error:
            raise self._failed(f"cannot be reached ({_told(error)})") from None

    def tools(self) -> list[dict[str, Any]]:
        """Returns the server's tools as definitions for the chat template.

        Raises:
            EnvironmentFault: the server failed.
        """
        try:
            return workers.run(_listed(self._held.client), self.seconds + _SLACK, f"server {self.name}")
        except Exception as error:
            raise self._failed(f"cannot list its tools ({_told(error)})") from None

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Answer:
        """Calls a tool of the server. If the server refuses the call, the answer is the server's error message.

        Raises:
            EnvironmentFault: the server died, timed out, or broke the protocol.
        """
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        if self.fault:
            raise EnvironmentFault(self.fault)
        called = self._held.client.call_tool(tool, dict(arguments))
        try:
            result = workers.run(called, self.seconds + _SLACK, f"server {self.name}")
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise self._failed(f"gave no answer to the call of {tool} ({_told(error)})") from None
            return Answer(str(error), True)
        except Exception as error:
            raise self._failed(f"failed at the call of {tool} ({_told(error)})") from None
        except BaseException:  # an interrupt: the server may still be working on the call
            self.close()
            raise
        return Answer(text_of(result), bool(result.is_error))

    def close(self) -> None:
        """Ends the connection, and also the server if this object has started the server."""
        self.fault = self.fault or f"server {self.name}: the connection was closed"
        self._close()

    def _failed(self, what: str) -> EnvironmentFault:
        said = self._tail()
        self.fault = f"server {self.name} {what}" + (f"; the last lines of its log: {said}" if said else "")
        self._close()
        return EnvironmentFault(self.fault)

    def _tail(self, lines: int = 3) -> str:
        size = os.fstat(self._log.fileno()).st_size
        kept = os.pread(self._log.fileno(), 4096, max(0, size - 4096))
        return " | ".join(kept.decode(errors="replace").strip().splitlines()[-lines:])


class _Held:
    """The part of a :class:`Connection` that the coroutine :func:`_hold` uses.

    It does not refer to the connection, so that the connection can be garbage-collected while the coroutine runs.
    """

    def __init__(self) -> None:
        self.up: Future[None] = Future()
        self.client: Any = None
        self.stop: asyncio.Event | None = None
        self.over = threading.Event()
        self.owner = os.getpid()


async def _hold(
    held: _Held,
    command: Sequence[str],
    url: str,
    folder: str | None,
    variables: Sequence[str],
    seconds: float,
    log: int,
) -> None:
    """Opens a connection, and closes it when ``held.stop`` is set.

    One coroutine does both, because the client must be closed in the asyncio task that opened the client.
    """
    from mcp import Client, StdioServerParameters, stdio_client

    held.stop = asyncio.Event()
    with os.fdopen(os.dup(log), "w", encoding="utf-8") as stderr:
        target: Any = url
        if command:
            words = [sys.executable if command[0] == "python" else command[0], *command[1:]]
            passed = {name: os.environ[name] for name in variables if name in os.environ}
            target = stdio_client(
                StdioServerParameters(command=words[0], args=words[1:], env=passed, cwd=folder), errlog=stderr
            )
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


_open: set[_Held] = set()


@atexit.register
def _end_all() -> None:
    """Ends every open connection of this process, and waits until the servers that this process started have ended.

    Otherwise a server that ignores the end of its input would continue to run.
    """
    ending = [held for held in list(_open) if held.owner == os.getpid()]
    for held in ending:
        _stop(held, held.owner)
    deadline = time.monotonic() + _END
    for held in ending:
        held.over.wait(max(0.0, deadline - time.monotonic()))


async def _listed(client: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            found.append({"type": "function", "function": function})
        cursor = page.next_cursor
        if not cursor:
            return found
    raise ValueError(f"the list of tools of the MCP server has more than {_PAGES} pages")


def _stop(held: _Held, owner: int) -> None:
    if os.getpid() == owner and (stop := held.stop) is not None:  # a forked copy must not end a server of its parent
        workers.soon(stop.set)


def _told(error: BaseException) -> str:
    """Returns a description of an error. For an exception group, the description is that of the group's first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def text_of(result: Any) -> str:
    """Returns a tool's result as text: one line for each part, with a short note for each part that is not text.

    If the result has no parts, returns its structured content as JSON.
    """
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)


def _part(block: Any) -> str:
    kind = block.type
    if kind == "text":
        return str(block.text)
    if kind == "resource":
        return str(getattr(block.resource, "text", f"[{block.resource.uri}]"))
    if kind == "resource_link":
        return f"[{block.uri}]"
    return f"[{kind} {block.mime_type}]"
