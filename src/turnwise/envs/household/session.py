"""A running episode of ``env=household``."""

from __future__ import annotations

import copy

from turnwise.envs.environment import Step, check_open
from turnwise.envs.household.state import State
from turnwise.envs.household.world import NOTHING, World
from turnwise.types import Message, Task


class HouseholdSession:
    """A running episode of ``env=household``. See ``turnwise.envs.environment.Session``.

    An action that is unknown or not possible now gets the answer "Nothing happens." and counts as a turn.
    """

    __slots__ = ("done", "horizon", "state", "task", "turns", "won", "world")

    def __init__(self, task: Task, world: World, horizon: int) -> None:
        self.task = task
        self.world = world
        self.horizon = horizon
        self.state = State(world.start[:])
        self.turns = 0
        self.won = self.state.won(world)
        self.done = self.won

    def opening(self) -> list[Message]:
        """Returns one user message: the description of the room, a blank line and the task."""
        return [{"role": "user", "content": self.world.opening}]

    def step(self, action: str) -> Step:
        """Applies one action and returns the environment's answer.

        Raises:
            RuntimeError: the episode is over.
        """
        check_open(self.task, self.done, self.turns)
        self.turns += 1
        world, state = self.world, self.state
        command = world.commands.get(action.strip())
        if command is not None and state.admits(world, command):
            admissible = True
            state.apply(world, command)
            observation = state.describe(world, command)
            self.won = state.won(world)
        else:
            admissible, observation = False, NOTHING
        self.done = self.won or self.turns >= self.horizon
        return Step(observation, float(self.won), self.done, self.won, {"admissible": admissible})

    def fork(self) -> HouseholdSession:
        twin = copy.copy(self)
        twin.state = self.state.copy()
        return twin

    def admissible(self) -> list[str]:
        """Returns all commands that are possible now, in alphabetical order as in TextWorld."""
        world, state = self.world, self.state
        return sorted(world.texts[c] for c in world.nearby[state.at] if state.admits(world, c))
