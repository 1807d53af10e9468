"""``env=household``: ALFWorld's text and rules over generated rooms, in pure Python."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.envs.demonstration import by_quality, demonstration
from turnwise.envs.environment import Quality, check_horizon, check_task, same_text
from turnwise.envs.household import planner, verifier
from turnwise.envs.household.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.household.rooms import make_task
from turnwise.envs.household.session import HouseholdSession
from turnwise.envs.household.world import World
from turnwise.types import Task, Trajectory


class HouseholdEnv:
    """Six kinds of household tasks in text. See ``turnwise.envs.environment.Environment``.

    Args:
        horizon: turns of an episode.
        mistakes: how often the clumsy expert errs.
        worlds: how many tasks keep their parsed worlds in memory.

    Raises:
        ValueError: the horizon or the number of worlds is below 1.
    """

    name = "household"

    def __init__(self, horizon: int = 30, mistakes: Mistakes | None = None, worlds: int = 256) -> None:
        if worlds < 1:
            raise ValueError(f"worlds: keep at least one world, got {worlds}")
        self.horizon = check_horizon(horizon)
        self.mistakes = mistakes or Mistakes()
        self._worlds: dict[str, tuple[Task, World]] = {}
        self._keep = worlds

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """``count`` tasks of a split; a longer list starts with the shorter one.

        Raises:
            ValueError: the split is not one of train, seen, unseen, or the count is negative.
        """
        if count < 0:
            raise ValueError(f"count: cannot draw {count} tasks")
        return [make_task(split, seed, index) for index in range(count)]

    def reset(self, task: Task) -> HouseholdSession:
        """A fresh episode.

        Raises:
            ValueError: the task belongs to another environment, or its data is not a household.
        """
        check_task(task, self.name)
        kept = self._worlds.get(task.id)
        if kept is None or (kept[0] is not task and kept[0] != task):
            while len(self._worlds) >= self._keep:
                self._worlds.pop(next(iter(self._worlds)))
            kept = self._worlds[task.id] = (task, World(task.data))
        return HouseholdSession(task, kept[1], self.horizon)

    def replay(self, task: Task, actions: Sequence[str]) -> HouseholdSession:
        """The episode after those actions, or where it ended before the last of them."""
        session = self.reset(task)
        for action in actions:
            if session.done:
                break
            session.step(action)
        return session

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """An expert's episode: opening, then action and observation in turn, the last observation included.

        ``success`` is False where the horizon came first.

        Raises:
            ValueError: the quality is neither good nor clumsy.
        """
        session = self.reset(task)
        expert = by_quality(
            quality, lambda: GoodExpert(session, seed), lambda: ClumsyExpert(session, seed, self.mistakes)
        )
        return demonstration(session, lambda: expert.act(session), quality, seed)

    def remaining(self, session: HouseholdSession) -> int:
        """Length of the shortest plan to the goal with full knowledge; 0 where the goal holds."""
        return planner.remaining(session.world, session.state)

    def accepts(self, session: HouseholdSession, action: str, expert: str) -> bool:
        """The functional verifier; see ``household.verifier`` for the rule, which needs no ``expert``."""
        return verifier.accepts(session, action)

    def same(self, action: str, expert: str) -> bool:
        """Exact match after whitespace is normalised (PivotRL Eq. 2)."""
        return same_text(action, expert)
