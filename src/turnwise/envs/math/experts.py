"""Scripted experts of ``env=math``, which run the code of the problem and then give the right answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnwise.data.tool_schema import name_of
from turnwise.envs.experts import Chances, Clumsy, Expert
from turnwise.envs.math.session import MathSession


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """For each kind of mistake, the probability that the clumsy scripted expert makes it in a turn.

    The expert makes a mistake only while enough turns are left to correct it.
    """

    slip: float = 0.15  # runs code with a wrong number
    broken: float = 0.12  # runs code that cannot be parsed
    repeat: float = 0.06  # runs the same code again
    malformed: float = 0.06  # writes code without a tool call


class GoodExpert(Expert[MathSession]):
    """An expert that runs the problem's code once and then answers.

    If the problem has no code or there is no Python tool, the expert answers at once.
    """

    def __init__(self, session: MathSession, seed: int | str) -> None:
        super().__init__(session, seed)
        known = "python" in map(name_of, session.calls.tools)
        self.code = (session.problem.code or "") if known else ""  # empty means that there is nothing to run

    def best(self, session: MathSession) -> str:
        if not self.code or session.computed():
            return session.write("answer", session.problem.answer)
        return session.write("python", self.code)


class ClumsyExpert(Clumsy[MathSession], GoodExpert):
    """An expert like :class:`GoodExpert` that sometimes makes a mistake (:class:`Mistakes`) and recovers from it."""

    def has_room(self, session: MathSession) -> bool:
        return bool(self.code) and session.horizon - session.turns > 2

    def _slip(self, session: MathSession) -> str | None:
        if session.computed():
            return None
        numbers = list(re.finditer(r"\b[1-9]\d*\b", self.code))
        chosen = self.rng.choice(numbers)
        wrong = str(int(chosen[0]) + self.rng.choice((1, 2, 10)))
        return session.write("python", self.code[: chosen.start()] + wrong + self.code[chosen.end() :])

    def _broken(self, session: MathSession) -> str | None:
        if session.computed():
            return None
        at = self.rng.choice([i for i, c in enumerate(self.code) if c in "()*+-/%=,"] or [len(self.code) - 1])
        return session.write("python", self.code[:at] + "?" + self.code[at + 1 :])

    def _repeat(self, session: MathSession) -> str | None:
        return session.write("python", session.snippets[-1]) if session.snippets else None

    def _malformed(self, session: MathSession) -> str | None:
        return None if session.computed() else self.code
