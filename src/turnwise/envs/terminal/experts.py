"""Scripted experts, which know of the folder only what they have read.

The good one does the chores in order, and looks for a file first where the request names it by a word in it. The clumsy one
does the same with detours and mistakes, each of which it puts right.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.envs.terminal.session import TerminalSession


@dataclass(frozen=True, slots=True)
class Slips:
    """Probabilities a turn of the clumsy expert.

    Raises:
        ValueError: one lies outside [0, 1], or they sum to more than 0.8.
    """

    look: float = 0.12  # list the folder, or read a file
    misspell: float = 0.1  # a path that is not there
    guess: float = 0.08  # look for a word that is in no file
    stray: float = 0.08  # put a needless file into the folder, and take it away in the next turn

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, value in values.items():
            if not 0 <= value <= 1:
                raise ValueError(f"slips.{name}: a probability lies in [0, 1], got {value}")
        if sum(values.values()) > 0.8:
            raise ValueError(f"slips: the probabilities sum to {sum(values.values()):g}; at most 0.8, or no task ends")


class GoodExpert:
    """One instance plays one episode.

    Args:
        seed: draws between equivalent commands.
    """

    def __init__(self, session: TerminalSession, seed: int | str) -> None:
        self.rng = random.Random(f"terminal expert {seed} {session.task.id}")

    def command(self, session: TerminalSession) -> str:
        """The next command."""
        chore = session.goal.unmet(session.tree)
        assert chore is not None
        if session.hidden(chore):
            return self.search(chore)
        return str(chore["command"]).format(path=chore["path"])

    def search(self, chore: Mapping[str, Any]) -> str:
        """Find the file that holds a word."""
        return self.rng.choice(["grep -rl {}", "grep -r {}"]).format(chore["find"])


class ClumsyExpert(GoodExpert):
    """A good expert that errs with given probabilities and recovers."""

    def __init__(self, session: TerminalSession, seed: int | str, slips: Slips | None = None) -> None:
        super().__init__(session, seed)
        self.slips = slips or Slips()
        self.stray: str | None = None

    def command(self, session: TerminalSession) -> str:
        """The next command, now and then a mistake."""
        if self.stray is not None:
            path, self.stray = self.stray, None
            return f"rm {path}"
        planned = super().command(session)
        draw = self.rng.random()
        for name in Slips.__dataclass_fields__:
            draw -= getattr(self.slips, name)
            if draw < 0:
                return str(getattr(self, f"_{name}")(session, planned))
        return planned

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
