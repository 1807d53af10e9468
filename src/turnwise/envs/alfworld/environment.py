"""``env=alfworld``: the ALFWorld engine in worker processes, with generated games or with the official ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from turnwise.envs import household
from turnwise.envs.alfworld.generated import GeneratedGames
from turnwise.envs.alfworld.official import OfficialGames
from turnwise.envs.alfworld.session import AlfworldSession
from turnwise.envs.alfworld.workers import Pool
from turnwise.envs.environment import Quality, check_horizon
from turnwise.envs.experts import demonstration
from turnwise.envs.scripted_environment import ScriptedEnv
from turnwise.types import Task, Trajectory

_CASES = Path(household.__file__).with_name("checks.yaml")


class AlfworldEnvironment(ScriptedEnv[AlfworldSession]):
    """An environment with ALFWorld's six task types (arXiv:2010.03768), played as text games in TextWorld.

    See ``turnwise.envs.environment.Environment``.

    Args:
        games: the ``json_2.1.1`` folder of the official games. None means the rooms and tasks of ``env=household``.
        horizon: maximum number of turns of an episode; ALFWorld's own limit is 50.
        workers: number of processes that run the engine. New sessions are assigned to the processes in round-robin
            order. A fork stays in the process of its parent session.
        timeout: time limit in seconds for each answer of a worker. A worker that takes longer is ended.
        python: the Python interpreter that has alfworld and textworld installed. None means the interpreter of this
            process.

    Raises:
        ValueError: ``horizon`` or ``workers`` is below 1, ``timeout`` is 0 or less, or ``games`` is not a folder of
            games.
    """

    name = "alfworld"
    waits = True

    def __init__(
        self,
        games: str | Path | None = None,
        horizon: int = 50,
        workers: int = 1,
        timeout: float = 60.0,
        python: str | None = None,
    ) -> None:
        self.horizon = check_horizon(horizon)
        self.games = GeneratedGames(horizon) if games is None else OfficialGames(Path(games))
        # The generated games have the rooms and tasks of env=household, so the verifier's test cases apply here too.
        self.cases = _CASES if games is None else None
        self.pool = Pool(workers, timeout, python)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [replace(task, env=self.name) for task in self.games.tasks(split, count, seed)]

    def begin(self, task: Task) -> AlfworldSession:
        """Opens an episode in a worker process.

        Raises:
            MissingEngineError: the Python interpreter of the workers lacks the engine.
            EnvironmentFault: the worker died, timed out, or its engine refused the game.
            ValueError: the task's game does not exist.
        """
        game = self.games.game(task)
        worker = self.pool.worker()
        return AlfworldSession(task, self.horizon, worker, worker.call(op="open", game=game))

    def play(self, session: AlfworldSession, quality: Quality, seed: int) -> Trajectory:
        actions = iter(self.games.expert(session.fork(), quality, seed))
        return demonstration(session, lambda: next(actions, None), quality, seed)

    def accepts(self, session: AlfworldSession, action: str, expert: str) -> bool:
        """Returns whether the functional verifier accepts ``action``.

        The verifier of generated games is that of ``env=household``. The verifier of official games uses the engine's
        planner (``OfficialGames.accepts``).
        """
        return self.games.accepts(session, action, expert)

    def close(self) -> None:
        """Ends the worker processes, which otherwise end with this process."""
        self.pool.close()
