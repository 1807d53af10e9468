"""The base class of episodes in which each reply of the policy is one tool call."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, Self

from turnwise.data.tool_schema import name_of, parameters_of
from turnwise.data.toolcalls import ToolCallError
from turnwise.envs.calls import Calls, refusal
from turnwise.envs.environment import Step, check_open
from turnwise.types import Message, Task, ToolCall

MAX_ARGUMENT = 20_000  # maximum length of a text argument, in characters


class ToolSession(ABC):
    """Base class of episodes with tool calls. See ``turnwise.envs.environment.Session``.

    A fork is a shallow copy. The attributes of a subclass must therefore hold values that never change in place, such
    as tuples, or objects that are only read, such as a search index.

    Args:
        calls: the format in which the policy writes calls.
        system: the text of the system message. An explanation of the tools is appended to it.
        user: the text of the user message, which follows the system message.
    """

    def __init__(self, task: Task, calls: Calls, horizon: int, system: str, user: str) -> None:
        self.task, self.calls, self.horizon = task, calls, horizon
        self.turns = 0
        self.done = self.won = False
        self._opening: tuple[Message, ...] = (
            {"role": "system", "content": "\n".join(filter(None, [system, calls.explain()]))},
            {"role": "user", "content": user},
        )

    @abstractmethod
    def act(self, call: ToolCall) -> Step:
        """Answers one tool call of the policy. If the returned step is ``done``, the episode ends.

        :meth:`step` counts the turns and checks the horizon.

        Raises:
            ToolCallError: the call is refused. The policy reads the error message as its observation.
            EnvironmentFault: the environment failed.
        """

    def opening(self) -> list[Message]:
        """Returns the system message, which lists the tools, and the user's request."""
        return [dict(message) for message in self._opening]

    def call(self, action: str) -> ToolCall:
        """Returns the tool call in an action.

        Raises:
            ToolCallError: there is not exactly one call, or the call does not fit its tool.
        """
        return self.calls.read(action)

    def write(self, name: str, *arguments: Any) -> str:
        """Returns a call of the tool ``name`` as the text that the policy would write. The inverse of :meth:`call`.

        ``arguments`` holds values in the order of the tool's parameters.
        """
        (keys,) = (parameters_of(tool) for tool in self.calls.tools if name_of(tool) == name)
        return self.calls.write(ToolCall(name, dict(zip(keys, arguments, strict=True))))

    def refused(self, error: ToolCallError) -> str:
        """Returns the observation that the policy gets after an action without a valid tool call."""
        return refusal(error)

    def step(self, action: str) -> Step:
        """Applies one action and returns the environment's answer.

        An action without a valid tool call gets an error message as answer and counts as a turn.

        Raises:
            RuntimeError: the episode is over.
            EnvironmentFault: the environment failed.
        """
        check_open(self.task, self.done, self.turns)
        info: dict[str, Any] = {"admissible": True}
        try:
            answer = self.act(self.call(action))
        except ToolCallError as error:
            answer = Step(self.refused(error))
            info["admissible"] = False
        self.turns += 1
        self.won = answer.won
        self.done = answer.done or self.turns >= self.horizon
        return Step(answer.observation, answer.reward, self.done, answer.won, {**info, **answer.info})

    def fork(self) -> Self:
        return copy.copy(self)

    def admissible(self) -> list[str]:
        """Returns an empty list: actions cannot be listed, because the arguments of tool calls are free text."""
        return []


class TextSession(ToolSession):
    """An episode in which each tool takes one text argument."""

    @abstractmethod
    def use(self, name: str, argument: str) -> Step:
        """Returns the answer to a call of the tool ``name`` with a non-empty argument."""

    def act(self, call: ToolCall) -> Step:
        (argument,) = call.arguments.values()
        return self.use(call.name, argument)

    def call(self, action: str) -> ToolCall:
        """Returns the tool call in an action, with surrounding whitespace removed from its argument.

        Raises:
            ToolCallError: there is no call, or its argument is empty or longer than 20,000 characters.
        """
        call = super().call(action)
        ((key, value),) = call.arguments.items()
        argument = str(value).strip()
        if not argument:
            raise ToolCallError("the argument is empty")
        if len(argument) > MAX_ARGUMENT:
            raise ToolCallError(f"the argument has {len(argument)} characters, more than {MAX_ARGUMENT}")
        return ToolCall(call.name, {key: argument})

    def read(self, action: str) -> tuple[str, str] | None:
        """Returns the name of the tool that an action calls and its argument; None if the action is not a call."""
        try:
            call = self.call(action)
        except ToolCallError:
            return None
        (argument,) = call.arguments.values()
        return call.name, argument
