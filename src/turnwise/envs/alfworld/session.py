"""A running episode of the ALFWorld engine, which a worker process holds."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from turnwise.envs.alfworld.client import Worker
from turnwise.envs.environment import Step, check_open
from turnwise.types import Message, Task

BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"


class AlfworldSession:
    """See ``turnwise.envs.environment.Session``. The session counts turns itself, because the engine has no horizon.

    ``actions`` lists the actions taken so far, including those without effect. An action that is not admissible gets
    the answer "Nothing happens.". ``seen`` holds the receptacles whose inside a walk or an opening has shown.
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
        """Returns one user message with the room, a blank line and the task."""
        return [{"role": "user", "content": self._intro}]

    def step(self, action: str) -> Step:
        """Applies one action.

        Raises:
            EnvironmentFault: the worker died, timed out, or its engine failed.
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
        """Returns an independent copy in the same worker. Actions are replayed only when the engine has to switch its
        position.

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
        """Returns all commands that have an effect now, in the engine's order."""
        return list(self._admissible)

    def plan(self) -> list[str]:
        """Returns the planner's commands from here to the goal, which are not always the fewest.

        The list is empty if the goal is reached or no plan is found.

        Raises:
            EnvironmentFault: the worker died or timed out.
        """
        return [] if self.won else list(self._worker.call(op="plan", at=self._at)["plan"])
