"""A running episode of ``env=alfworld``. The ALFWorld engine in a worker process holds the episode's state."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from turnwise.envs.alfworld.workers import Worker
from turnwise.envs.environment import Step, check_open
from turnwise.types import Message, Task

BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"


class AlfworldSession:
    """A running episode of the ALFWorld engine. See ``turnwise.envs.environment.Session``.

    An action that is not possible in the present state gets the answer "Nothing happens.".

    Attributes:
        actions: the actions taken so far, including those without effect.
        seen: the receptacles whose content the policy has seen after it walked to them or opened them.
    """

    def __init__(self, task: Task, horizon: int, worker: Worker, reply: Mapping[str, Any]) -> None:
        self.task = task
        self.horizon = horizon
        self.actions: tuple[str, ...] = ()
        self.seen: frozenset[str] = frozenset()
        self._intro: str = reply["observation"].removeprefix(BANNER)
        self._attach(worker, reply)
        self.done = self.won

    def _attach(self, worker: Worker, reply: Mapping[str, Any]) -> None:
        self._worker, self._at = worker, reply["id"]
        self._admissible: list[str] = reply["admissible"]
        self.won: bool = reply["won"]
        weakref.finalize(self, worker.free, self._at)

    def opening(self) -> list[Message]:
        """Returns one user message: a description of the room, a blank line and the task."""
        return [{"role": "user", "content": self._intro}]

    def step(self, action: str) -> Step:
        """Applies one action and returns the environment's answer.

        Raises:
            EnvironmentFault: the worker died or timed out, or the engine failed.
            RuntimeError: the episode is over.
        """
        check_open(self.task, self.done, len(self.actions))
        command = action.strip()
        admissible = command in self._admissible
        reply = self._worker.call(op="step", at=self._at, action=action)
        self.actions += (action,)
        self._admissible, self.won = reply["admissible"], reply["won"]
        if admissible and command.startswith(("go to ", "open ")) and "you see" in reply["observation"]:
            self.seen |= {" ".join(command.split()[-2:])}
        self.done = self.won or len(self.actions) >= self.horizon
        return Step(reply["observation"], float(self.won), self.done, self.won, {"admissible": admissible})

    def fork(self) -> AlfworldSession:
        """Returns an independent copy of this session. Both are held by one worker process.

        Raises:
            EnvironmentFault: the worker died or timed out.
        """
        twin = AlfworldSession.__new__(AlfworldSession)
        twin.task, twin.horizon, twin.actions = self.task, self.horizon, self.actions
        twin.seen, twin._intro = self.seen, self._intro
        twin._attach(self._worker, self._worker.call(op="fork", at=self._at))
        twin.done = self.done
        return twin

    def admissible(self) -> list[str]:
        """Returns all possible commands in the engine's order."""
        return list(self._admissible)

    def plan(self) -> list[str]:
        """Returns the commands of a plan of the engine's planner, from the present state to the goal.

        The plan is not always the shortest. It is empty if the goal is already reached or no plan is found.

        Raises:
            EnvironmentFault: the worker died or timed out.
        """
        return [] if self.won else list(self._worker.call(op="plan", at=self._at)["plan"])
