"""What episodes with tools have in common: a reply is read as one call, and the world answers it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, Self

from turnwise.data.toolcalls.base import ToolCallError
from turnwise.envs.base import Step
from turnwise.envs.calls import Calls, refusal
from turnwise.types import Message, Task


class ToolSession(ABC):
    """See ``turnwise.envs.base.Session``.

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
    def act(self, tool: str, argument: str) -> Step:
        """Answer one call. ``done`` of the step ends the episode; the horizon is not its affair."""

    def opening(self) -> list[Message]:
        """A system message that lists the tools, and the question."""
        return [dict(message) for message in self._opening]

    def read(self, action: str) -> tuple[str, str] | None:
        """The call that an action is; None where it is none."""
        try:
            return self.calls.read(action)
        except ToolCallError:
            return None

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
            answer = self.act(*self.calls.read(action))
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
