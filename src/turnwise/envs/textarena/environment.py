"""``env=textarena``: single-player games of the package textarena (arXiv:2504.11442)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnwise.envs.environment import check_horizon, hashed_split
from turnwise.envs.experts import Chances, Clumsy, Expert
from turnwise.envs.replay import ReplayedEnv
from turnwise.envs.scripted_environment import ScriptedEnv
from turnwise.envs.textarena.episode import GameEpisode, GameSession, package
from turnwise.envs.textarena.solvers import SOLVERS, Moves, Solver
from turnwise.errors import InputError
from turnwise.types import Task

NAME = "textarena"
SAMPLES: Mapping[str, str] = {
    "2048": "[up] [down] [left] [right]",
    "Blackjack": "[hit] [stand]",
    "FifteenPuzzle": "[up] [down] [left] [right]",
    "LightsOut": "[0_0] [1_2] [3_3] [4_1] [2_4]",
    "Minesweeper": "[0_0] [3_4] [2_1] [4_2]",
    "Sudoku": "[1_1_5] [2_3_7] [9_9_1] [5_4_2]",
}
"""Name of a game without an expert -> moves that the test at start-up plays. An underscore stands for a space."""
UNLIMITED = 100  # maximum number of turns in a game without an own limit
_MISSES = 1000  # number of consecutive boards without a new board of the split after which the search ends


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """For each kind of mistake, the probability that the clumsy scripted expert makes it in a turn.

    The expert makes a mistake only while enough turns are left to win the game after it.
    """

    stray: float = 0.15  # makes a legal move that gains nothing
    malformed: float = 0.08  # writes a move without brackets; never twice in a row, because that would end the game


class GoodExpert(Expert[GameSession]):
    """An expert that makes the best moves of the game's solver."""

    def moves(self, session: GameSession) -> Moves:
        return solver_of(session.task).moves(session.texts())

    def best(self, session: GameSession) -> str:
        return self.moves(session).good[0]


class ClumsyExpert(Clumsy[GameSession], GoodExpert):
    """An expert like :class:`GoodExpert` that sometimes makes a mistake (:class:`Mistakes`) and recovers from it."""

    def has_room(self, session: GameSession) -> bool:
        return session.horizon - len(session.taken) > self.moves(session).needed + 2

    def _stray(self, session: GameSession) -> str | None:
        idle = self.moves(session).idle
        return self.rng.choice(idle) if idle else None

    def _malformed(self, session: GameSession) -> str | None:
        return None if session.warned else self.best(session).strip("[]")


# Both base classes declare ``begin``. Python uses ``ReplayedEnv.begin``, because ReplayedEnv is listed first.
class TextArenaEnv(ReplayedEnv, ScriptedEnv[GameSession]):  # type: ignore[misc]
    """An environment in which the policy plays one game on many boards.

    It implements ``turnwise.envs.environment.Environment``. A task is a seed, which decides the board. If the first
    observation shows the board, a hash of this observation decides the split, so no board is in two splits. Otherwise
    (for example, if the board is a number to guess) a hash of the seed decides the split, and two splits may share a
    board.

    Args:
        id: id of a game in the package's registry, such as ``FrozenLake-v0``.
        settings: settings of the game that replace the registered ones.
        horizon: maximum number of turns of an episode; None means the game's own limit, or 100.
        mistakes: probabilities of the mistakes of the clumsy scripted expert.

    Raises:
        MissingTextArenaError: the package is not installed; the message says how to install it.
        InputError: there is no such game or setting, or the game was not tested with Turnwise.
    """

    name = NAME
    good, clumsy = GoodExpert, ClumsyExpert

    def __init__(
        self,
        id: str = "GuessTheNumber-v0",  # noqa: A002 - the package uses this name
        settings: Mapping[str, Any] | None = None,
        horizon: int | None = None,
        mistakes: Mistakes | None = None,
    ) -> None:
        self.id, self.settings = check_game(id), dict(settings or {})
        self.mistakes = mistakes or Mistakes()
        try:
            episodes = [self._deal(seed) for seed in range(4)]
        except Exception as error:  # a game may raise any exception because of its settings
            raise InputError(
                f"env.settings: the game {id} cannot be opened with {self.settings} ({error}); correct env.settings"
            ) from error
        self.horizon = check_horizon(horizon if horizon is not None else episodes[0].turns or UNLIMITED)
        self._shows = len({str(episode.opening()) for episode in episodes}) > 1

    def _deal(self, seed: int) -> GameEpisode:
        return GameEpisode(self.id, self.settings, seed)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        rng = random.Random(f"{NAME} {self.id} {seed}")
        found: dict[str, Task] = {}
        misses = 0
        while len(found) < count:
            dealt = rng.randrange(2**31)
            key = str(self._deal(dealt).opening()) if self._shows else str(dealt)
            misses += 1
            if misses > _MISSES:
                raise InputError(
                    f"env.id={self.id}: {count} different boards of the split {split} are needed, but only "
                    f"{len(found)} were found; lower data.trajectories, states.count or eval.tasks, or choose settings "
                    "with more boards"
                )
            if key not in found and hashed_split(key) == split:
                misses = 0
                data = {"game": self.id, "settings": self.settings, "seed": dealt}
                found[key] = Task(NAME, f"{split}/{dealt}", split, data)
        return list(found.values())

    def open_episode(self, task: Task) -> GameEpisode:
        data = task.data
        if not isinstance(data.get("seed"), int) or not isinstance(settings := data.get("settings", {}), Mapping):
            raise ValueError(f"task {task.id}: its data does not describe a game of textarena")
        if data.get("game") != self.id or dict(settings) != self.settings:
            raise InputError(
                f"task {task.id}: the task was made for the game {data.get('game')} with settings {dict(settings)}, "
                f"but this run has {self.id} with {self.settings}; correct env.id and env.settings"
            )
        return self._deal(data["seed"])

    def session(self, task: Task) -> GameSession:
        return GameSession(task, partial(self.open_episode, task), self.horizon)

    def unknown(self, session: GameSession) -> str:
        return "" if _base(session.task) in SOLVERS else f"there is no expert for {session.task.data['game']}"

    def accepts(self, session: GameSession, action: str, expert: str) -> bool:
        """Returns whether the action is one of the solver's good moves or wins the game at once.

        If the game has no solver, the action must equal the expert's action.
        """
        if _base(session.task) not in SOLVERS:
            return self.same(action, expert)
        solver = solver_of(session.task)
        if session.done:
            return False
        return solver.read(action) in solver.moves(session.texts()).good or session.fork().step(action).won

    def trial(self, session: Any, rng: random.Random) -> str:
        if samples := SAMPLES.get(_base(session.task)):
            return rng.choice(samples.split()).replace("_", " ")
        moves = solver_of(session.task).moves(session.texts())
        return rng.choice([*moves.good, *moves.idle])


def check_game(name: str) -> str:
    """Checks that the game with the id ``name`` can be played, and returns ``name``.

    Raises:
        MissingTextArenaError: the package is not installed.
        InputError: the package has no such game, or the game was not tested with Turnwise.
    """
    known: Mapping[str, Any] = package().envs.registration.ENV_REGISTRY
    games = sorted(game for game in known if game.partition("-")[0] in {*SOLVERS, *SAMPLES} and f"{game}-raw" in known)
    if name not in games:
        raise InputError(
            f"env.id={name}: this game cannot be played; choose one of {', '.join(games)}. The other games of the "
            "package need other players, a server or a download, or they were not tested"
        )
    return name


def solver_of(task: Task) -> Solver:
    return SOLVERS[_base(task)]


def _base(task: Task) -> str:
    return str(task.data["game"]).partition("-")[0]
