"""``env=alfworld``: the official games in the ALFWorld engine, which runs in worker processes."""

from __future__ import annotations

import copy
import json
import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from turnwise.env import Quality, Step
from turnwise.errors import InputError
from turnwise.types import Task
from turnwise_worlds.alfworld.workers import AlfworldPool, AlfworldWorker
from turnwise_worlds.text_games import GameEnv, GameSession, Prompt

BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"


class AlfworldSession(GameSession):
    """A running episode of the ALFWorld engine, which answers "Nothing happens." to a command that is not possible."""

    def __init__(self, task: Task, horizon: int, worker: AlfworldWorker, reply: Mapping[str, Any]) -> None:
        self.task = task
        self.horizon = horizon
        self.actions: tuple[str, ...] = ()  # the commands so far, including those without effect
        self.seen: frozenset[str] = frozenset()  # receptacles whose content was seen by walking to them or opening them
        self._intro: str = reply["observation"].removeprefix(BANNER)
        self._attach(worker, reply)
        self.done = self.won

    def _attach(self, worker: AlfworldWorker, reply: Mapping[str, Any]) -> None:
        self._worker, self._at = worker, reply["id"]
        self._admissible: list[str] = reply["admissible"]
        self.won: bool = reply["won"]
        weakref.finalize(self, worker.free, self._at)

    def intro(self) -> str:
        return self._intro

    def answer(self, action: str) -> Step:
        reply = self._worker.call(op="step", at=self._at, action=action)
        self.actions += (action,)
        command = action.strip()
        admissible = command in self._admissible
        self._admissible = reply["admissible"]
        if admissible and command.startswith(("go to ", "open ")) and "you see" in reply["observation"]:
            self.seen |= {" ".join(command.split()[-2:])}
        won = reply["won"]
        return Step(reply["observation"], float(won), won, won, {"admissible": admissible})

    def fork(self) -> AlfworldSession:
        twin = copy.copy(self)
        twin._attach(self._worker, self._worker.call(op="fork", at=self._at))
        return twin

    def admissible(self) -> list[str]:
        return list(self._admissible)

    def plan(self) -> list[str]:
        """Returns the planner's commands from here to the goal, not always the fewest; empty if there are none."""
        return [] if self.won else list(self._worker.call(op="plan", at=self._at)["plan"])


FOLDERS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}
GAME = "game.tw-pddl"
REMEDY = "download the games with 'alfworld-download', and set env.games to the folder json_2.1.1 of the download"
DETOUR = 0.3  # probability that the clumsy expert takes a detour before a walk


class OfficialGames:
    """The games in the subfolders train, valid_seen and valid_unseen of ``folder``."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ValueError(f"games: there is no folder {str(folder)!r}; {REMEDY}")
        if not any((folder / name).is_dir() for name in FOLDERS.values()):
            raise ValueError(f"games: {str(folder)!r} has none of the folders {', '.join(FOLDERS.values())}; {REMEDY}")
        self.folder = folder
        self._found: dict[str, list[str]] = {}

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        paths = self._paths(split)
        random.Random(f"alfworld {split} {seed}").shuffle(paths)
        chosen: list[Task] = []
        for path in paths:
            if len(chosen) == count:
                break
            if self._read(path).get("solvable", True):
                folder = Path(path).parent
                # the task type: the part of the folder's name before the first hyphen, as in
                # "pick_and_place_simple-Mug-None-Desk-308"
                kind = folder.parent.name.partition("-")[0]
                chosen.append(Task("alfworld", str(folder), split, {"game": path}, kind))
        if len(chosen) < count:
            raise InputError(
                f"env.games: the split {split} has {len(chosen)} solvable games, but {count} are needed; lower "
                "data.trajectories, states.count or eval.tasks"
            )
        return chosen

    def game(self, task: Task) -> str:
        return str(self._file(str(task.data.get("game"))))

    def expert(self, session: AlfworldSession, quality: Quality, seed: int) -> list[str]:
        """Returns an expert's actions: the walkthrough in the game file or, if it does not win, the planner's. Before
        some walks the clumsy expert also looks around, checks its inventory or walks to an unneeded place.
        """
        walk = list(self._read(session.task.data["game"]).get("walkthrough") or [])
        if not walk or not _wins(session.fork(), walk):
            walk = session.plan()
        if quality == "good":
            return walk
        rng = random.Random(f"{session.task.id} {seed}")
        places = [command for command in session.admissible() if command.startswith("go to ")]
        actions: list[str] = []
        for command in walk:
            if command.startswith("go to ") and rng.random() < DETOUR:
                others = [place for place in places if place != command]
                actions.append(rng.choice([*rng.sample(others, min(2, len(others))), "look", "inventory"]))
            actions.append(command)
        return actions

    def accepts(self, session: AlfworldSession, action: str, expert: str) -> bool:
        """Accepts the expert's action if it is possible, and one that shortens the planner's plan at least as much. If
        the expert's does not shorten it, another must, or show the inside of a receptacle for the first time.
        """
        if action.strip() not in session.admissible():
            return False
        if action.split() == expert.split():
            return True
        if session.done:
            return False
        taken, shown = _after(session, action), _after(session, expert)
        now, after, wanted = _distance(session), _distance(taken), _distance(shown)
        if after is None or now is None:
            return False
        if wanted is not None and wanted < now:
            return after <= wanted
        return after < now or taken.seen > session.seen

    def _paths(self, split: str) -> list[str]:
        if split not in self._found:
            games = (path.relative_to(self.folder).as_posix() for path in (self.folder / FOLDERS[split]).rglob(GAME))
            # Games with movable receptacles or sliced objects are not part of the benchmark: ALFWorld's loader skips
            # these games too.
            self._found[split] = sorted(path for path in games if "movable" not in path and "Sliced" not in path)
        return list(self._found[split])

    def _file(self, path: str) -> Path:
        file = (self.folder / path).resolve()
        if not file.is_file() or not file.is_relative_to(self.folder.resolve()):
            raise InputError(f"there is no game file {path!r} in {str(self.folder)!r}; {REMEDY}")
        return file

    def _read(self, path: str) -> dict:
        file = self._file(path)
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise InputError(f"{file}:{error.lineno}: broken JSON ({error.msg}); download the file again") from None


def _wins(session: AlfworldSession, commands: Sequence[str]) -> bool:
    for command in commands:
        if session.done:
            break
        session.play(command)
    return session.won


def _after(session: AlfworldSession, action: str) -> AlfworldSession:
    twin = session.fork()
    twin.play(action)
    return twin


def _distance(session: AlfworldSession) -> int | None:
    """Returns the number of actions in the planner's plan; 0 at the goal, None if there is no plan."""
    return 0 if session.won else len(session.plan()) or None


class AlfworldEnvironment(GameEnv[AlfworldSession]):
    """ALFWorld's six task types (arXiv:2010.03768). ``conf/env/alfworld.yaml`` explains the arguments."""

    name = "alfworld"
    waits = True

    def __init__(
        self,
        games: str | Path | None = None,
        horizon: PositiveInt = 50,
        workers: PositiveInt = 1,
        timeout: PositiveFloat = 60.0,
        python: str | None = None,
        prompt: Prompt | None = None,
    ) -> None:
        self.horizon, self.prompt = horizon, prompt
        self.games = self._open(games)
        self.pool = AlfworldPool(workers, timeout, python)

    def _open(self, games: str | Path | None) -> Any:  # or another source of games, with their experts and verifier
        if games is None:
            raise InputError(f"env.games: env=alfworld plays the official games; {REMEDY}")
        return OfficialGames(Path(games))

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [replace(task, env=self.name) for task in self.games.tasks(split, count, seed)]

    def begin(self, task: Task) -> AlfworldSession:
        game = self.games.game(task)
        worker = self.pool.worker()
        return AlfworldSession(task, self.horizon, worker, worker.call(op="open", game=game))

    def actor(self, session: AlfworldSession, quality: Quality, seed: int) -> Callable[[], str | None]:
        commands = iter(self.games.expert(session.fork(), quality, seed))
        return lambda: next(commands, None)

    def allows(self, session: AlfworldSession, command: str, expert: str) -> bool:
        return self.games.accepts(session, command, expert)

    def close(self) -> None:
        self.pool.close()
