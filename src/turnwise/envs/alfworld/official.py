"""The official ALFWorld games, where a user has downloaded them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from turnwise.envs.alfworld.session import AlfworldSession
from turnwise.envs.environment import Quality
from turnwise.errors import InputError
from turnwise.types import Task

FOLDERS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}
GAME = "game.tw-pddl"
REMEDY = "get the games with 'alfworld-download' and give the path of its json_2.1.1 folder"
DETOUR = 0.3  # how often the clumsy expert strays before a walk


class OfficialGames:
    """Games under ``folder``/{train, valid_seen, valid_unseen}.

    Raises:
        ValueError: the folder is missing or holds none of the three.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ValueError(f"games: there is no folder {str(folder)!r}; {REMEDY}")
        if not any((folder / name).is_dir() for name in FOLDERS.values()):
            raise ValueError(f"games: {str(folder)!r} holds none of {', '.join(FOLDERS.values())}; {REMEDY}")
        self.folder = folder
        self._found: dict[str, list[str]] = {}

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Returns ``count`` solvable games of a split in the seed's order.

        Raises:
            ValueError: no such split, or it has fewer games.
        """
        paths = self._paths(split)
        random.Random(f"alfworld {split} {seed}").shuffle(paths)
        chosen: list[Task] = []
        for path in paths:
            if len(chosen) == count:
                break
            if self._read(path).get("solvable", True):
                folder = Path(path).parent
                kind = folder.parent.name.partition("-")[0]  # of "pick_and_place_simple-Mug-None-Desk-308"
                chosen.append(Task("alfworld", str(folder), split, {"game": path}, kind))
        if len(chosen) < count:
            raise InputError(
                f"count: split {split!r} has {len(chosen)} playable games, {count} were asked for: lower data.trajectories, "
                "states.count or eval.tasks"
            )
        return chosen

    def game(self, task: Task) -> str:
        """Returns the path of the game file.

        Raises:
            ValueError: the task names no game of this folder.
        """
        return str(self._file(str(task.data.get("game"))))

    def expert(self, session: AlfworldSession, quality: Quality, seed: int) -> list[str]:
        """Returns the walkthrough of the game file, or the planner's where it has none that wins.

        The clumsy expert looks about, and walks to places where it has nothing to do, before some of its walks.
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
        """Whether ``action`` shortens the planner's plan as much as the expert's, or explores where that explores.

        Where the expert's action does not shorten the plan, one that shortens it is acceptable, and so is one that
        shows the inside of a receptacle not seen so far. The planner is not optimal, so neither is the measure.
        """
        if action.strip() not in session.admissible():
            return False
        if action.split() == expert.split():
            return True
        now, after, wanted = _distance(session), _distance(session, action), _distance(session, expert)
        if after is None or now is None:
            return False
        if wanted is not None and wanted < now:
            return after <= wanted
        return after < now or _shows_new(session, action)

    def _paths(self, split: str) -> list[str]:
        if split not in self._found:
            found = (path.relative_to(self.folder).as_posix() for path in (self.folder / FOLDERS[split]).rglob(GAME))
            # As in ALFWorld's own loader: movable receptacles and slices are no tasks of the benchmark.
            self._found[split] = sorted(path for path in found if "movable" not in path and "Sliced" not in path)
        return list(self._found[split])

    def _file(self, path: str) -> Path:
        """Tasks come from data files too, and a game file brings a grammar that the engine computes: only these."""
        file = (self.folder / path).resolve()
        if not file.is_file() or not file.is_relative_to(self.folder.resolve()):
            raise ValueError(f"there is no game file {path!r} in {str(self.folder)!r}; {REMEDY}")
        return file

    def _read(self, path: str) -> dict:
        file = self._file(path)
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}:{error.lineno}: broken JSON ({error.msg}); download it again") from None


def _wins(session: AlfworldSession, actions: Sequence[str]) -> bool:
    for action in actions:
        if session.done:
            break
        session.step(action)
    return session.won


def _distance(session: AlfworldSession, action: str | None = None) -> int | None:
    """Commands of the planner's plan from here, or from after an action; None where it finds none."""
    if action is not None:
        session = session.fork()
        if session.done:
            return None
        session.step(action)
    if session.won:
        return 0
    return len(session.plan()) or None


def _shows_new(session: AlfworldSession, action: str) -> bool:
    """Whether the action shows the inside of a receptacle that no earlier one showed."""
    if session.done:
        return False
    twin = session.fork()
    twin.step(action)
    return twin.seen > session.seen
