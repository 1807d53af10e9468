"""Scripted experts of ``env=terminal``, which do the chores (small file tasks) of a request in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.envs.experts import Chances, Clumsy, Expert
from turnwise.envs.terminal.session import TerminalSession


@dataclass(frozen=True, slots=True)
class Slips(Chances):
    """For each kind of mistake, the probability that the clumsy scripted expert makes it in a turn."""

    look: float = 0.12  # lists the folder, or reads a file
    misspell: float = 0.1  # uses a path that does not exist
    guess: float = 0.08  # searches for a word that no file contains
    stray: float = 0.08  # creates a needless file, and removes it in the next turn


class GoodExpert(Expert[TerminalSession]):
    """An expert that does the chores (small file tasks) in order.

    If the request describes a file only by a word in it, the expert first searches for the file.
    """

    def best(self, session: TerminalSession) -> str:
        return session.write("bash", self.command(session))

    def command(self, session: TerminalSession) -> str:
        """Returns the bash command of the good expert in the present state of the episode."""
        chore = session.goal.unmet(session.tree)
        assert chore is not None
        if session.hidden(chore):
            return self.search(chore)
        return str(chore["command"]).format(path=chore["path"])

    def search(self, chore: Mapping[str, Any]) -> str:
        """Returns a command that searches for the chore's file by the word that describes the file."""
        return self.rng.choice(["grep -rl {}", "grep -r {}"]).format(chore["find"])


class ClumsyExpert(Clumsy[TerminalSession], GoodExpert):
    """An expert like :class:`GoodExpert` that sometimes makes a mistake (:class:`Slips`) and recovers from it."""

    stray: str | None = None  # path of a needless file, which the next command removes

    def act(self, session: TerminalSession) -> str:
        if self.stray is not None:
            path, self.stray = self.stray, None
            return session.write("bash", f"rm {path}")
        planned = self.command(session)
        return session.write("bash", self.mistake(session, planned) or planned)

    def _look(self, session: TerminalSession, planned: str) -> str:
        folders = [path for path, entry in session.tree.items() if entry is None]
        return self.rng.choice(["ls", "pwd", *(f"ls {folder}" for folder in folders)])

    def _misspell(self, session: TerminalSession, planned: str) -> str:
        return planned.replace(".txt", ".text", 1) if planned.startswith(("cp", "mv", "rm", "sed")) else "cat note"

    def _guess(self, session: TerminalSession, planned: str) -> str:
        return "grep -r zebra"

    def _stray(self, session: TerminalSession, planned: str) -> str:
        self.stray = "x.txt"
        return "touch x.txt"
