"""``env=household``: ALFWorld's texts and rules in generated rooms, in pure Python."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.envs.caches import LastTasks
from turnwise.envs.environment import Verifier, check_horizon, check_verifier
from turnwise.envs.household import demonstrated_verifier
from turnwise.envs.household import verifier as oracle
from turnwise.envs.household.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.household.rooms import make_task
from turnwise.envs.household.session import HouseholdSession
from turnwise.envs.household.world import World
from turnwise.envs.scripted_environment import ScriptedEnv
from turnwise.types import Task


class HouseholdEnv(ScriptedEnv[HouseholdSession]):
    """Household tasks of six kinds, played in text. See ``turnwise.envs.environment.Environment``.

    Args:
        horizon: maximum number of turns of an episode.
        mistakes: probabilities of the clumsy expert's mistakes.
        worlds: maximum number of tasks whose rooms (:class:`~turnwise.envs.household.world.World`) are kept in memory.
        verifier: ``oracle`` accepts actions that make progress (``household.verifier``). ``demonstrated`` accepts
            actions that have the effect of the expert's action (``household.demonstrated_verifier``).

    Raises:
        ValueError: the horizon or ``worlds`` is below 1, or the verifier is unknown.
    """

    name = "household"
    good, clumsy = GoodExpert, ClumsyExpert

    def __init__(
        self, horizon: int = 30, mistakes: Mistakes | None = None, worlds: int = 256, verifier: Verifier = "oracle"
    ) -> None:
        if worlds < 1:
            raise ValueError(f"worlds: must be at least 1, got {worlds}")
        self.horizon = check_horizon(horizon)
        self.mistakes = mistakes or Mistakes()
        self.verifier = check_verifier(verifier)
        self._worlds = LastTasks(_world, worlds)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [make_task(split, seed, index) for index in range(count)]

    def begin(self, task: Task) -> HouseholdSession:
        return HouseholdSession(task, self._worlds(task), self.horizon)

    def replay(self, task: Task, actions: Sequence[str]) -> HouseholdSession:
        """Opens an episode of the task, applies ``actions`` until the episode ends, and returns the episode."""
        session = self.reset(task)
        for action in actions:
            if session.done:
                break
            session.step(action)
        return session

    def accepts(self, session: HouseholdSession, action: str, expert: str) -> bool:
        if self.verifier == "oracle":
            return oracle.accepts(session, action)
        return demonstrated_verifier.accepts(session, action, expert)


def _world(task: Task) -> World:
    try:
        return World(task.data)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"task {task.id}: its data is not a task of env=household ({error!r})") from error
