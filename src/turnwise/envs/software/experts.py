"""Scripted experts. They read before they write: the tests name the function, a search its file, the file the line."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.envs.software.session import SoftwareSession
from turnwise.types import ToolCall


@dataclass(frozen=True, slots=True)
class Slips:
    """Probabilities a turn of the clumsy expert.

    Raises:
        ValueError: one lies outside [0, 1], or they sum to more than 0.8.
    """

    again: float = 0.08  # run the tests once more
    astray: float = 0.12  # open another file, or one that is not there
    lost: float = 0.06  # search for what is nowhere
    wrong: float = 0.35  # a wrong edit of the right line, where one is due; it is put right next

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, value in values.items():
            if not 0 <= value <= 1:
                raise ValueError(f"slips.{name}: a probability lies in [0, 1], got {value}")
        if sum(values.values()) > 0.8:
            raise ValueError(f"slips: the probabilities sum to {sum(values.values()):g}; at most 0.8, or no task ends")


class GoodExpert:
    """Run the tests, search the function, open its file, put the line right. One instance plays one episode.

    Args:
        seed: draws whether it searches where the tests name the module already.
    """

    def __init__(self, session: SoftwareSession, seed: int | str) -> None:
        self.rng = random.Random(f"software expert {seed} {session.task.id}")
        self.fault: Mapping[str, Any] = session.task.data["fault"]
        self.plan = ["run", *(["search"] if self.rng.random() < 0.5 else []), "open", "edit"]

    def call(self, session: SoftwareSession) -> ToolCall:
        """The next call."""
        return self.planned(self.plan.pop(0) if len(self.plan) > 1 else self.plan[0])

    def planned(self, step: str) -> ToolCall:
        """A step of the plan as a call."""
        fault = self.fault
        arguments: Mapping[str, Mapping[str, Any]] = {
            "run": {},
            "search": {"text": f"def {fault['function']}"},
            "open": {"path": fault["path"]},
            "edit": {"path": fault["path"], "line": fault["line"], "text": fault["right"]},
        }
        return ToolCall(step, arguments[step])


class ClumsyExpert(GoodExpert):
    """A good expert that errs with given probabilities and recovers."""

    def __init__(self, session: SoftwareSession, seed: int | str, slips: Slips | None = None) -> None:
        super().__init__(session, seed)
        self.slips = slips or Slips()

    def call(self, session: SoftwareSession) -> ToolCall:
        """The next call, now and then a mistake."""
        draw = self.rng.random()
        for name in Slips.__dataclass_fields__:
            draw -= getattr(self.slips, name)
            if draw < 0:
                slip: ToolCall | None = getattr(self, f"_{name}")(session)
                return slip or super().call(session)
        return super().call(session)

    def _again(self, session: SoftwareSession) -> ToolCall:
        return ToolCall("run", {})

    def _astray(self, session: SoftwareSession) -> ToolCall:
        others = [path for path in session.tree if path != self.fault["path"]]
        return ToolCall("open", {"path": self.rng.choice([*others, f"{self.fault['function']}.py"])})

    def _lost(self, session: SoftwareSession) -> ToolCall:
        return ToolCall("search", {"text": f"class {self.fault['function']}"})

    def _wrong(self, session: SoftwareSession) -> ToolCall | None:
        choices = session.task.data["wrong"]
        if self.plan != ["edit"] or not choices:
            return None
        edit = self.planned("edit")
        return ToolCall("edit", {**edit.arguments, "text": self.rng.choice(choices)})
