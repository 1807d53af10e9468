"""``env=textarena``: single-player games of the package textarena (arXiv:2504.11442)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnwise.envs.environment import check_horizon
from turnwise.envs.experts import Chances, Clumsy, Expert
from turnwise.envs.replay import ReplayedEnv
from turnwise.envs.scripted import ScriptedEnv
from turnwise.envs.textarena.episode import GameEpisode, package
from turnwise.envs.textarena.session import GameSession
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
"""Games without an expert -> moves that are tried at start-up, with _ for a space."""
UNLIMITED = 100  # turns of a game that has no limit of its own
_SHARES = ("train", "train", "seen", "unseen")  # of the games
_MISSES = 1000  # deals in a row that are no new one of a split


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """Probabilities per turn of the clumsy expert; it errs only as long as the turns left suffice to win all the same."""

    stray: float = 0.15  # a legal move that only costs turns
    malformed: float = 0.08  # a move without its brackets; never twice in a row, which would end the game


class GoodExpert(Expert[GameSession]):
    """Makes the moves of the game's solver."""

    def moves(self, session: GameSession) -> Moves:
        return solver_of(session.task).moves(session.texts())

    def best(self, session: GameSession) -> str:
        return self.moves(session).good[0]


class ClumsyExpert(Clumsy[GameSession], GoodExpert):
    """The good expert with :class:`Mistakes`, from which it recovers."""

    def has_room(self, session: GameSession) -> bool:
        return session.horizon - len(session.taken) > self.moves(session).needed + 2

    def _stray(self, session: GameSession) -> str | None:
        idle = self.moves(session).idle
        return self.rng.choice(idle) if idle else None

    def _malformed(self, session: GameSession) -> str | None:
        return None if session.warned else self.best(session).strip("[]")


class TextArenaEnv(ReplayedEnv, ScriptedEnv[GameSession]):  # type: ignore[misc]  # both declare begin, ReplayedEnv's is used
    """One game, dealt by seeds. See ``turnwise.envs.environment.Environment``.

    Where the opening shows the deal, its hash decides the split, and no board is in two splits. Where it does not (a
    number to guess), the hash of the seed does, and two seeds may deal the same.

    Args:
        id: of a game in the package's registry, as ``FrozenLake-v0``.
        settings: of the game, in place of the registered ones.
        horizon: turns of an episode; None: the game's own limit, or 100.
        mistakes: probabilities of the clumsy expert.

    Raises:
        MissingTextArenaError: the package is not installed; the message says how.
        InputError: there is no such game or setting, or the game is none of those that were tried here.
    """

    name = NAME
    good, clumsy = GoodExpert, ClumsyExpert

    def __init__(
        self,
        id: str = "GuessTheNumber-v0",  # noqa: A002 - the package's word
        settings: Mapping[str, Any] | None = None,
        horizon: int | None = None,
        mistakes: Mistakes | None = None,
    ) -> None:
        self.id, self.settings = check_game(id), dict(settings or {})
        self.mistakes = mistakes or Mistakes()
        try:
            episodes = [self._deal(seed) for seed in range(4)]
        except Exception as error:  # whatever a game says of its settings
            raise InputError(f"env.settings: {id} cannot be opened with {self.settings}: {error}") from error
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
                    f"env.id={self.id}: only {len(found)} boards of the split {split} were found; lower data.trajectories, "
                    "states.count or eval.tasks, or choose settings with more boards"
                )
            if key not in found and _split_of(key) == split:
                misses = 0
                data = {"game": self.id, "settings": self.settings, "seed": dealt}
                found[key] = Task(NAME, f"{split}/{dealt}", split, data)
        return list(found.values())

    def open_episode(self, task: Task) -> GameEpisode:
        data = task.data
        if not isinstance(data.get("seed"), int) or not isinstance(settings := data.get("settings", {}), Mapping):
            raise ValueError(f"task {task.id}: no game of textarena")
        if data.get("game") != self.id or dict(settings) != self.settings:
            raise InputError(
                f"task {task.id}: {data.get('game')} with {dict(settings)} is not this run's game; set env.id and env.settings"
            )
        return self._deal(data["seed"])

    def session(self, task: Task) -> GameSession:
        return GameSession(task, partial(self.open_episode, task), self.horizon)

    def unknown(self, session: GameSession) -> str:
        return "" if _base(session.task) in SOLVERS else f"there is no expert of {session.task.data['game']}"

    def accepts(self, session: GameSession, action: str, expert: str) -> bool:
        """Whether the action is one of the solver's good moves or wins at once; without a solver, whether it is the expert's.

        A first invalid move in a row costs a turn and a second one the game, so that neither is accepted.
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
    """Returns the name.

    Raises:
        MissingTextArenaError: the package is not installed.
        InputError: the package has no such game, or nobody has tried it here.
    """
    known: Mapping[str, Any] = package().envs.registration.ENV_REGISTRY
    games = sorted(game for game in known if game.partition("-")[0] in {*SOLVERS, *SAMPLES} and f"{game}-raw" in known)
    if name not in games:
        raise InputError(
            f"env.id={name}: choose one of {', '.join(games)}; the package's other games need other players, a server, a "
            "download, or were not tried"
        )
    return name


def solver_of(task: Task) -> Solver:
    """Returns the solver of a task's game."""
    return SOLVERS[_base(task)]


def _base(task: Task) -> str:
    return str(task.data["game"]).partition("-")[0]


def _split_of(key: str) -> str:
    """Half of all games are train, a quarter seen and a quarter unseen."""
    return _SHARES[hashlib.sha256(key.encode()).digest()[0] % len(_SHARES)]
