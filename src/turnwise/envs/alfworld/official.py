"""The official ALFWorld games, which the user has to download."""

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
REMEDY = "download the games with 'alfworld-download', and set env.games to the folder json_2.1.1 of the download"
DETOUR = 0.3  # probability that the clumsy expert takes a detour before a walk


class OfficialGames:
    """The games in the subfolders train, valid_seen and valid_unseen of ``folder``.

    Raises:
        ValueError: the folder is missing, or it contains none of these subfolders.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ValueError(f"games: there is no folder {str(folder)!r}; {REMEDY}")
        if not any((folder / name).is_dir() for name in FOLDERS.values()):
            raise ValueError(f"games: {str(folder)!r} has none of the folders {', '.join(FOLDERS.values())}; {REMEDY}")
        self.folder = folder
        self._found: dict[str, list[str]] = {}

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Returns ``count`` solvable games of a split, in an order that depends on the seed.

        Raises:
            InputError: the split has fewer than ``count`` solvable games.
        """
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
        """Returns the path of the task's game file.

        Raises:
            InputError: the task does not name a game file in ``folder``.
        """
        return str(self._file(str(task.data.get("game"))))

    def expert(self, session: AlfworldSession, quality: Quality, seed: int) -> list[str]:
        """Returns the actions of a scripted expert.

        The good expert takes the actions of the walkthrough in the game file or, if these actions do not win, of the
        engine's planner. The clumsy expert takes the actions of the good expert. Before some walks the clumsy expert
        also looks around, checks its inventory or walks to an unneeded place.
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
        """Returns whether the verifier accepts ``action``. The expert's action is accepted if it is possible.

        Any other action must shorten the plan of the engine's planner at least as much as the expert's action does. If
        the expert's action does not shorten the plan, ``action`` must shorten the plan or show the inside of a
        receptacle for the first time. The rule is approximate, because the planner's plan is not always the shortest.
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
            found = (path.relative_to(self.folder).as_posix() for path in (self.folder / FOLDERS[split]).rglob(GAME))
            # Games with movable receptacles or sliced objects are not part of the benchmark: ALFWorld's loader skips
            # these games too.
            self._found[split] = sorted(path for path in found if "movable" not in path and "Sliced" not in path)
        return list(self._found[split])

    def _file(self, path: str) -> Path:
        """Returns the path of a game file, after a check that the file lies in ``folder``.

        A path can come from a data file, and the engine executes code in the grammar of a game file.
        """
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


def _wins(session: AlfworldSession, actions: Sequence[str]) -> bool:
    for action in actions:
        if session.done:
            break
        session.step(action)
    return session.won


def _after(session: AlfworldSession, action: str) -> AlfworldSession:
    twin = session.fork()
    twin.step(action)
    return twin


def _distance(session: AlfworldSession) -> int | None:
    """Returns the number of actions in the planner's plan from the session's state to the goal; 0 at the goal.

    The result is None if there is no plan.
    """
    return 0 if session.won else len(session.plan()) or None
