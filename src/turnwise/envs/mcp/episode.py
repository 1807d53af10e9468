"""A running episode of ``env=mcp``, in which the policy calls tools of MCP servers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.tool_schema import check_call
from turnwise.data.toolcalls import PARSERS, Format, Reply, ToolCallError
from turnwise.envs.calls import refusal
from turnwise.envs.environment import EnvironmentFault, Step
from turnwise.envs.mcp.connection import Answer, Connection
from turnwise.envs.mcp.problem import Problem
from turnwise.envs.mcp.servers import Servers
from turnwise.envs.tool_messages import Tools, answered, opened, templated
from turnwise.errors import InputError
from turnwise.types import Message, ToolCall


def read_reply(text: str, form: Format, tools: Sequence[Mapping[str, Any]]) -> Reply:
    """Parses a reply of the policy in an episode of ``env=mcp`` and checks that its calls fit the tools.

    Raises:
        ToolCallError: the reply cannot be parsed, is empty, or has a call that does not fit its tool.
    """
    reply = PARSERS[form](text, tools)
    if not (reply.calls or reply.content):
        raise ToolCallError("the reply is empty")
    for call in reply.calls:
        if problems := check_call({"name": call.name, "arguments": call.arguments}, tools):
            raise ToolCallError("; ".join(problems))
    return reply


class McpEpisode:
    """A running episode of ``env=mcp``. It implements ``turnwise.envs.shared_episode.Episode``.

    The episode connects to a server when it calls one of the server's tools for the first time.

    Args:
        problem: the content of the task.
        servers: the servers of the run.
        tools: the tools that the policy may call.
        form: the format in which the policy writes calls.
        system: the system message to the policy; it may be empty.
        shown: maximum number of characters of a tool's answer that the policy sees.
        where: the task's name, for error messages.
    """

    def __init__(
        self, problem: Problem, servers: Servers, tools: Tools, form: Format, system: str, shown: int, where: str
    ) -> None:
        self.problem, self.servers, self.form, self.system, self.shown = problem, servers, form, system, shown
        self.where = where
        self._tools = tools
        self._connections: dict[str, Connection] = {}
        self._set_up = not problem.setup
        self._acting = self._closed = False
        self._lock = threading.Lock()

    @property
    def tools(self) -> Tools:
        """Returns the tools that the chat template shows; empty if the system message lists the tools."""
        return self._tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        """Returns the user's request. A system message before it has the text ``system`` and, if the chat template does
        not show the tools, a list of the tools.
        """
        return opened(self.system, self._tools, self.form, self.problem.prompt)

    def act(self, text: str) -> Step:
        """Makes the tool calls in a reply of the policy, one after the other, and returns the answers.

        A reply without calls ends the episode. The episode is won if this reply gives a right answer and the final
        state of the servers passes the task's check.

        Raises:
            EnvironmentFault: a server failed, or the episode was closed.
            InputError: a call of the task's own ``setup`` or ``check`` failed.
        """
        with self._lock:
            self._check_open()
            self._acting = True
        try:
            return self._acted(text)
        finally:
            self._acting = False

    def close(self) -> None:
        """Gives the episode's connections back. If a call is running, the episode's own servers are ended."""
        with self._lock:
            self._closed = True
            connections, self._connections = self._connections, {}
            busy = self._acting
        for name, connection in connections.items():
            self.servers.give(name, connection, busy)

    def _acted(self, text: str) -> Step:
        try:
            reply = read_reply(text, self.form, self._tools)
        except ToolCallError as error:
            return self._told([refusal(error)], admissible=False)
        if reply.calls:
            return self._told([self._called(call) for call in reply.calls], admissible=True)
        said = self.problem.answered(reply.content)
        won = said and self._checked()
        return Step("", float(won), True, won, {"admissible": True, "answered": said})

    def _told(self, results: list[str], admissible: bool) -> Step:
        return Step("\n".join(results), info={"admissible": admissible}, messages=answered(results, self.form))

    def _called(self, call: ToolCall) -> str:
        answer = self._live(call)
        text = f"Error: {answer.text}" if answer.failed and not answer.text.startswith("Error") else answer.text
        return text if len(text) <= self.shown else f"{text[: self.shown]}... ({len(text)} characters)"

    def _checked(self) -> bool:
        check = self.problem.check
        if check is None:
            return True
        return check.holds(self._own(check.made(), "check").text)

    def _live(self, call: ToolCall) -> Answer:
        if not self._set_up:
            self._set_up = True
            for each in self.problem.setup:
                self._own(each.made(), "setup")
        name = self.servers.holder(call.name)
        connection = self._connections.get(name)
        if connection is None:
            connection = self.servers.take(name)
            with self._lock:
                if not self._closed:
                    self._connections[name] = connection
        if self._closed:
            self.servers.give(name, connection)
            self._check_open()
        return connection.call(call.name, call.arguments)

    def _check_open(self) -> None:
        if self._closed:
            raise EnvironmentFault(f"{self.where}: the episode was closed")

    def _own(self, call: ToolCall, key: str) -> Answer:
        answer = self._live(call)
        if answer.failed:
            raise InputError(f"{self.where}: {key}: the call of {call.name} failed ({answer.text}); correct the task")
        return answer
