"""When a terminal task is done, and how much of it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.envs.terminal.tasks import after
from turnwise.sandbox.tree import File, Tree, tree_of


class Goal:
    """A task's data, read once.

    ``final`` is what has to be in the folder at the end: what the chores ask for and every file that they leave alone. ``gone``
    has to be away. Anything else may lie about.

    Raises:
        ValueError: the data is no terminal task.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        try:
            self.chores: list[Mapping[str, Any]] = list(data["chores"])
            self.start: Tree = dict.fromkeys(data["folders"]) | tree_of(data["files"])
            final = dict(data["files"])
            for chore in self.chores:
                final = after(chore, final)
        except (KeyError, TypeError) as error:
            raise ValueError(f"task data: a terminal task has files, folders and chores ({error!r})") from None
        self.final = final
        self.gone = [path for chore in self.chores for path in chore["gone"] if path not in final]

    def missing(self, tree: Tree) -> int:
        """How many files are not as they have to be; 0 where the task is done."""
        wrong = sum(not _holds(tree, path, text) for path, text in self.final.items())
        return wrong + sum(path in tree for path in self.gone)

    def unmet(self, tree: Tree) -> Mapping[str, Any] | None:
        """The first chore that is not done."""
        for chore in self.chores:
            met = all(_holds(tree, path, text) for path, text in chore["want"].items() if self.final.get(path) == text)
            if not met or any(path in tree for path in chore["gone"] if path in self.gone):
                return chore
        return None


def _holds(tree: Tree, path: str, text: str) -> bool:
    """Whether the file is there with that text; blanks at the ends of lines and of the file do not count."""
    entry = tree.get(path)
    return isinstance(entry, File) and _plain(entry.content) == _plain(text.encode())


def _plain(content: bytes) -> list[bytes]:
    return [line.rstrip() for line in content.rstrip().splitlines()]
