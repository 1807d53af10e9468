"""Scripted experts, which know only what they have read of the folder.

The good one does the chores in order, and looks for a file first where the request names it by a word in it. The clumsy one
does the same with detours and mistakes, each of which it corrects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.envs.experts import Chances, Clumsy, Expert
from turnwise.envs.terminal.session import TerminalSession


@dataclass(frozen=True, slots=True)
class Slips(Chances):
    """Probabilities per turn of the clumsy expert."""

    look: float = 0.12  # list the folder, or read a file
    misspell: float = 0.1  # a path that is not there
    guess: float = 0.08  # look for a word that is in no file
    stray: float = 0.08  # put a needless file into the folder, and take it away in the next turn


class GoodExpert(Expert[TerminalSession]):
    """Does the chores in order. Its seed draws between equivalent commands."""

    def best(self, session: TerminalSession) -> str:
        return session.write("bash", self.command(session))

    def command(self, session: TerminalSession) -> str:
        """Returns the right command."""
        chore = session.goal.unmet(session.tree)
        assert chore is not None
        if session.hidden(chore):
            return self.search(chore)
        return str(chore["command"]).format(path=chore["path"])

    def search(self, chore: Mapping[str, Any]) -> str:
        """Returns a command that finds the file which holds a chore's word."""
        return self.rng.choice(["grep -rl {}", "grep -r {}"]).format(chore["find"])


class ClumsyExpert(Clumsy[TerminalSession], GoodExpert):
    """The good expert with :class:`Slips`, from which it recovers."""

    stray: str | None = None  # a needless file, which the next command removes

    def act(self, session: TerminalSession) -> str:
        """Returns the next action, which is now and then a mistake."""
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
