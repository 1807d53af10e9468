"""Scripted experts of ``env=software``, which look for the wrong line before they edit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.envs.experts import Chances, Clumsy, Expert
from turnwise.envs.software.session import SoftwareSession


@dataclass(frozen=True, slots=True)
class Slips(Chances):
    """For each kind of mistake, the probability that the clumsy scripted expert makes it in a turn."""

    again: float = 0.08  # runs the tests once more
    astray: float = 0.12  # opens another file, or one that does not exist
    lost: float = 0.06  # searches for a text that no file contains
    wrong: float = 0.35  # when only the edit is left, edits the right line wrongly; the next action corrects it


class GoodExpert(Expert[SoftwareSession]):
    """An expert that runs the tests, opens the file of the function that fails, and corrects the line.

    The seed decides whether the expert also searches for the function before it opens the file.
    """

    def __init__(self, session: SoftwareSession, seed: int | str) -> None:
        super().__init__(session, seed)
        self.fault: Mapping[str, Any] = session.task.data["fault"]
        self.plan = ["run", *(["search"] if self.rng.random() < 0.5 else []), "open", "edit"]

    def best(self, session: SoftwareSession) -> str:
        step = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
        fault = self.fault
        arguments: Mapping[str, tuple[Any, ...]] = {
            "run": (),
            "search": (f"def {fault['function']}",),
            "open": (fault["path"],),
            "edit": (fault["path"], fault["line"], fault["right"]),
        }
        return session.write(step, *arguments[step])


class ClumsyExpert(Clumsy[SoftwareSession], GoodExpert):
    """An expert like :class:`GoodExpert` that sometimes makes a mistake (:class:`Slips`) and recovers from it."""

    def _again(self, session: SoftwareSession) -> str:
        return session.write("run")

    def _astray(self, session: SoftwareSession) -> str:
        others = [path for path in session.tree if path != self.fault["path"]]
        return session.write("open", self.rng.choice([*others, f"{self.fault['function']}.py"]))

    def _lost(self, session: SoftwareSession) -> str:
        return session.write("search", f"class {self.fault['function']}")

    def _wrong(self, session: SoftwareSession) -> str | None:
        choices = session.task.data["wrong"]
        if self.plan != ["edit"] or not choices:
            return None
        return session.write("edit", self.fault["path"], self.fault["line"], self.rng.choice(choices))
