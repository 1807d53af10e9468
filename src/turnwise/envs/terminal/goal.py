"""Counts the files of a terminal task that do not yet have the required state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.envs.terminal.tasks import after
from turnwise.sandbox.folder_value import File, Tree, tree_of


class Goal:
    """The goal of a terminal task, read from the task's data. A task consists of chores (small file tasks).

    Attributes:
        chores: the chores, in the order in which they are to be done.
        request: the task in words.
        start: the content of the folder at the start.
        final: path -> text of the files that the folder must contain at the end: the results of the chores, and all
            files that no chore changes.
        gone: paths that must not exist at the end. Files that neither ``final`` nor ``gone`` names do not matter.

    Raises:
        ValueError: the data does not describe a terminal task.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        try:
            self.chores: list[Mapping[str, Any]] = list(data["chores"])
            self.start: Tree = {**dict.fromkeys(data["folders"]), **tree_of(data["files"])}
            final = dict(data["files"])
            for chore in self.chores:
                final = after(chore, final)
            texts = [chore["text"] for chore in self.chores]
        except (KeyError, TypeError) as error:
            raise ValueError(f"task data: a terminal task needs files, folders and chores ({error!r})") from None
        self.request = (
            texts[0] if len(texts) == 1 else "\n".join(f"{i}. {text}" for i, text in enumerate(texts, start=1))
        )
        self.final = final
        self.gone = [path for chore in self.chores for path in chore["gone"] if path not in final]

    def missing(self, tree: Tree) -> int:
        """Returns the number of files that do not have the required state; 0 if the task is done.

        A file that must be moved counts as wrong until it exists at its new path. So deleting it makes no progress.
        """
        wrong = sum(not _holds(tree, path, text) for path, text in self.final.items())
        for chore in self.chores:
            lost = not self._met(tree, chore)
            wrong += sum(path in tree or lost for path in chore["gone"] if path in self.gone)
        return wrong

    def unmet(self, tree: Tree) -> Mapping[str, Any] | None:
        """Returns the first chore that is not done, or None if all chores are done."""
        for chore in self.chores:
            if not self._met(tree, chore) or any(path in tree for path in chore["gone"] if path in self.gone):
                return chore
        return None

    def _met(self, tree: Tree, chore: Mapping[str, Any]) -> bool:
        """Returns whether the files that a chore creates or changes have the required text.

        Files that a later chore changes are not checked.
        """
        return all(_holds(tree, path, text) for path, text in chore["want"].items() if self.final.get(path) == text)


def _holds(tree: Tree, path: str, text: str) -> bool:
    """Returns whether a file exists with the given text. Blanks at the ends of lines and of the file are ignored."""
    entry = tree.get(path)
    return isinstance(entry, File) and _plain(entry.content) == _plain(text.encode())


def _plain(content: bytes) -> list[bytes]:
    return [line.rstrip() for line in content.rstrip().splitlines()]
