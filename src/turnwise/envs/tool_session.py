"""What episodes with tools of one text argument have in common: a reply is read as one call, and the world answers it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, Self

from turnwise.data.toolcalls.reply import ToolCallError
from turnwise.envs.calls import Calls, name_of, parameters_of, refusal
from turnwise.envs.environment import Step
from turnwise.types import Message, Task, ToolCall

MAX_ARGUMENT = 20_000  # characters of an argument


class ToolSession(ABC):
    """See ``turnwise.envs.environment.Session``.

    State of a subclass is made of values that are never changed in place (tuples, frozen dataclasses), so that a shallow
    copy is an independent one. What it shares with its forks, such as an index, is only read.

    Args:
        task: of the episode.
        calls: how the policy writes calls.
        horizon: turns.
        system, user: the opening's two messages; the tools are explained after ``system``.
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
    def act(self, name: str, argument: str) -> Step:
        """Answer one call. ``done`` of the step ends the episode; the horizon is not its affair."""

    def opening(self) -> list[Message]:
        """A system message that lists the tools, and the question."""
        return [dict(message) for message in self._opening]

    def read(self, action: str) -> tuple[str, str] | None:
        """The tool and its argument that an action calls; None where it is no call."""
        try:
            return self._read(action)
        except ToolCallError:
            return None

    def write(self, name: str, argument: str) -> str:
        """A call as a policy writes it; ``read`` gives it back."""
        (key,) = next(parameters_of(tool) for tool in self.calls.tools if name_of(tool) == name)
        return self.calls.write(ToolCall(name, {key: argument}))

    def _read(self, action: str) -> tuple[str, str]:
        call = self.calls.read(action)
        (argument,) = (str(value).strip() for value in call.arguments.values())
        if not argument:
            raise ToolCallError("the argument is empty")
        if len(argument) > MAX_ARGUMENT:
            raise ToolCallError(f"the argument has {len(argument)} characters, more than {MAX_ARGUMENT}")
        return call.name, argument

    def step(self, action: str) -> Step:
        """Apply one action; a reply that is no call is told so, and costs a turn.

        Raises:
            RuntimeError: the episode is over.
            EnvironmentFault: the world failed.
        """
        if self.done:
            raise RuntimeError(
                f"task {self.task.id}: the episode is over after {self.turns} turns; reset or fork earlier"
            )
        info: dict[str, Any] = {"admissible": True}
        try:
            answer = self.act(*self._read(action))
        except ToolCallError as error:
            answer = Step(refusal(error))
            info["admissible"] = False
        self.turns += 1
        self.won = answer.won
        self.done = answer.done or self.turns >= self.horizon
        return Step(answer.observation, answer.reward, self.done, answer.won, {**info, **answer.info})

    def fork(self) -> Self:
        """An independent copy."""
        return copy.copy(self)

    def admissible(self) -> list[str]:
        """Nothing can be listed: queries and answers are free text."""
        return []
