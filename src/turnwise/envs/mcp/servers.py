"""Manages the MCP servers of a run: checks settings, starts servers, and keeps connections for later episodes."""

from __future__ import annotations

import shutil
import threading
from collections import deque
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictBool, ValidationError

from turnwise.data.tool_schema import check_tool
from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.mcp.connection import Connection
from turnwise.envs.tool_messages import Tools
from turnwise.errors import InputError

INSTALL = "`make mcp` installs it"


class Server(BaseModel):
    """The settings of one MCP server. ``conf/env/mcp.yaml`` explains the keys."""

    model_config = ConfigDict(frozen=True)
    command: tuple[str, ...] = ()
    url: str = ""
    folder: str | None = None
    variables: tuple[str, ...] = ()
    shared: StrictBool = False
    reset: str | None = None
    tools: tuple[str, ...] | None = None


def server_of(name: str, given: Mapping[str, Any]) -> Server:
    """Checks and returns the settings of the server ``name``.

    Raises:
        ValueError: a key is unknown or its value has the wrong type, or both or neither of command and url are given.
    """
    if unknown := [str(key) for key in given if key not in Server.model_fields]:
        known = ", ".join(Server.model_fields)
        raise ValueError(f"servers.{name}.{unknown[0]}: there is no such key; a server has the keys {known}")
    try:
        server = Server.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        key, wrong = ".".join(map(str, first["loc"])), first["msg"].replace("tuple", "list")
        raise ValueError(f"servers.{name}.{key}: {wrong}, got {first['input']!r}") from None
    if bool(server.command) == bool(server.url):
        raise ValueError(f"servers.{name}: set either command or url, got {'both' if server.command else 'neither'}")
    if server.reset and (server.shared or server.url):
        raise ValueError(
            f"servers.{name}.reset: only a server that has a command and is not shared can be reset, because episodes "
            "may share any other server; remove reset"
        )
    return server


class Servers:
    """All MCP servers of a run. ``seconds`` is the time limit of a server's start and of each of its answers."""

    def __init__(self, servers: Mapping[str, Server], seconds: float) -> None:
        self.servers, self.seconds = dict(servers), seconds
        self._idle: dict[str, deque[Connection]] = {name: deque() for name in servers}
        self._shared: dict[str, Connection] = {}
        self._lock = threading.Lock()
        self._tools: dict[str, Tools] = {}

    def ready(self) -> None:
        """Checks that the package mcp and the programs that start the servers are installed.

        Raises:
            InputError: something is missing; the message says what, and how to install it.
        """
        if find_spec("mcp") is None:
            raise InputError(f"env=mcp needs the package mcp, which is not installed here; {INSTALL}")
        for name, server in self.servers.items():
            if server.command and server.command[0] != "python" and shutil.which(server.command[0]) is None:
                raise InputError(
                    f"env.servers.{name}.command: there is no program {server.command[0]!r} on this machine; install "
                    "the program, or correct the command"
                )

    def tools(self) -> dict[str, Tools]:
        """Returns the tools of each server as definitions for the chat template. Only the first call asks the servers.

        Raises:
            InputError: the package is missing, a server cannot be reached, or one of its tools cannot be used.
        """
        with self._lock:
            if not self._tools:
                self.ready()
                self._tools = {name: self._listed(name) for name in self.servers}
            return self._tools

    def shown(self) -> Tools:
        """Returns the tools that the policy may call.

        These are the tools that a server's setting ``tools`` names. If ``tools`` is None, these are all tools of the
        server. The tool that the setting ``reset`` names is always left out.

        Raises:
            InputError: ``tools`` or ``reset`` names a tool that its server lacks, or two servers show tools of the same
                name.
        """
        found: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for name, tools in self.tools().items():
            server = self.servers[name]
            by_name = {str(tool["function"]["name"]): tool for tool in tools}
            for key, wanted in (("tools", server.tools or ()), ("reset", filter(None, [server.reset]))):
                if missing := [word for word in wanted if word not in by_name]:
                    has = ", ".join(by_name)
                    raise InputError(f"env.servers.{name}.{key}: the server has no tool {missing[0]!r}; it has {has}")
            for word in server.tools if server.tools is not None else by_name:
                if word == server.reset:
                    continue
                if word in found:
                    raise InputError(
                        f"env.servers: {found[word][0]} and {name} both have a tool {word!r}; limit the tools of "
                        f"one server, for example with env.servers.{name}.tools=[...]"
                    )
                found[word] = name, by_name[word]
        return tuple(tool for _, tool in found.values())

    def holder(self, tool: str) -> str:
        """Returns the name of the server that shows a tool to the policy, or else of the only server that has the tool.

        Raises:
            InputError: no server has the tool, or several servers have the tool.
        """
        holders = [n for n, tools in self.tools().items() if any(t["function"]["name"] == tool for t in tools)]
        showing = [n for n in holders if (named := self.servers[n].tools) is None or tool in named]
        if len(found := showing or holders) != 1:
            raise InputError(
                f"env.servers: {len(found)} servers have the tool {tool!r}, which a task calls, but exactly one server "
                "must have it; correct env.servers or the task"
            )
        return found[0]

    def take(self, name: str) -> Connection:
        """Returns a connection to the server ``name`` for one episode.

        The server was just started or just reset, unless it is shared or has a ``url``. Several episodes may use a
        server that is shared or has a ``url`` at the same time.

        Raises:
            EnvironmentFault: the server cannot be reached, or its reset fails.
        """
        server = self.servers[name]
        if server.shared:
            with self._lock:
                connection = self._shared.get(name)
                if connection is None or connection.fault:
                    connection = self._shared[name] = self._open(name)
                return connection
        while server.reset and self._idle[name]:
            try:
                connection = self._idle[name].pop()
            except IndexError:  # another thread took the last connection
                break
            if not connection.fault:
                answer = connection.call(server.reset, {})
                if answer.failed:
                    connection.close()
                    raise EnvironmentFault(f"server {name}: the reset tool {server.reset} failed: {answer.text}")
                return connection
        return self._open(name)

    def give(self, name: str, connection: Connection, busy: bool = False) -> None:
        """Takes a connection from :meth:`take` back after an episode.

        If the server has the setting ``reset``, the connection is kept for a later episode. If the server is shared,
        the connection stays open. Any other connection is closed, which ends a server that this run has started.

        Args:
            name: the name of the server.
            connection: the connection.
            busy: whether a call may still be running, which could affect the next episode. If so, the connection is
                closed unless the server is shared.
        """
        server = self.servers[name]
        if server.reset and not connection.fault and not busy:
            self._idle[name].append(connection)
        elif not server.shared:
            connection.close()

    def close(self) -> None:
        """Ends the shared servers and the servers that no episode is using. Otherwise they end with this process."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()
        with self._lock:
            for connection in self._shared.values():
                connection.close()
            self._shared.clear()

    def _open(self, name: str) -> Connection:
        server = self.servers[name]
        return Connection(name, server.command, server.url, server.folder, server.variables, self.seconds)

    def _listed(self, name: str) -> Tools:
        try:
            connection = self._open(name)
            listed = connection.tools()
        except EnvironmentFault as error:
            raise InputError(f"env.servers.{name}: {error}") from error
        connection.close() if not self.servers[name].reset else self._idle[name].append(connection)
        for tool in listed:
            if problem := check_tool(tool):
                raise InputError(f"env.servers.{name}: {problem}")
        return tuple(listed)
