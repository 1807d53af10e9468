"""The base of episodes with tools: a reply is read as one call, and the environment answers it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, Self

from turnwise.data.toolcalls.reply import ToolCallError
from turnwise.envs.calls import Calls, name_of, parameters_of, refusal
from turnwise.envs.environment import Step, check_open
from turnwise.types import Message, Task, ToolCall

MAX_ARGUMENT = 20_000  # characters of a text argument


class ToolSession(ABC):
    """See ``turnwise.envs.environment.Session``.

    The state of a subclass is made of values that are never changed in place (tuples, frozen dataclasses), so that a shallow
    copy is independent. What it shares with its forks, such as an index, is only read.

    Args:
        task: of the episode.
        calls: how the policy writes calls.
        horizon: turns.
        system, user: the two messages of the opening; the tools are explained after ``system``.
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
        """Answers one call. ``done`` of the step ends the episode; :meth:`step` counts turns and applies the horizon.

        Raises:
            ToolCallError: the call is refused. The message is for the policy.
            EnvironmentFault: the environment failed.
        """

    def opening(self) -> list[Message]:
        """Returns a system message that lists the tools, and the request."""
        return [dict(message) for message in self._opening]

    def call(self, action: str) -> ToolCall:
        """Returns the call of an action.

        Raises:
            ToolCallError: there is none, or it does not fit its tool.
        """
        return self.calls.read(action)

    def write(self, name: str, *arguments: Any) -> str:
        """Writes a call as a policy would; ``call`` reads it back. The arguments are in the order of the tool's parameters."""
        (keys,) = (parameters_of(tool) for tool in self.calls.tools if name_of(tool) == name)
        return self.calls.write(ToolCall(name, dict(zip(keys, arguments, strict=True))))

    def refused(self, error: ToolCallError) -> str:
        """Returns the observation of an action that is no call."""
        return refusal(error)

    def step(self, action: str) -> Step:
        """Applies one action. A reply that is no call gets an error message and costs a turn.

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
        """Returns an independent copy."""
        return copy.copy(self)

    def admissible(self) -> list[str]:
        """Returns nothing: arguments are free text and cannot be listed."""
        return []


class TextSession(ToolSession):
    """An episode whose tools take one text argument each."""

    @abstractmethod
    def use(self, name: str, argument: str) -> Step:
        """Answers the call of a tool; ``argument`` is not empty."""

    def act(self, call: ToolCall) -> Step:
        (argument,) = call.arguments.values()
        return self.use(call.name, argument)

    def call(self, action: str) -> ToolCall:
        """Returns the call of an action, its argument without surrounding whitespace.

        Raises:
            ToolCallError: there is no call, its argument is empty or longer than 20,000 characters.
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
        """Returns the tool that an action calls and its argument; None where it is no call."""
        try:
            call = self.call(action)
        except ToolCallError:
            return None
        (argument,) = call.arguments.values()
        return call.name, argument
