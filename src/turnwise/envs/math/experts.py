"""Scripted experts of ``env=math``: run the code that belongs to the problem, read its last line, answer."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from turnwise.envs.calls import name_of
from turnwise.envs.math.session import MathSession
from turnwise.envs.search.experts import check_mistakes


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Probabilities per turn of the clumsy expert; it errs only as long as the turns left suffice to put it right.

    Raises:
        ValueError: one lies outside [0, 1], or they sum to more than 0.8.
    """

    slip: float = 0.15  # code with a wrong number
    broken: float = 0.12  # code that does not parse
    repeat: float = 0.06  # run again what was just run
    malformed: float = 0.06  # code without the call

    def __post_init__(self) -> None:
        check_mistakes({name: getattr(self, name) for name in self.__dataclass_fields__})


class GoodExpert:
    """Computes once, then answers with what was printed. One instance plays one episode."""

    def __init__(self, session: MathSession, seed: int | str) -> None:
        self.rng = random.Random(f"math expert {seed} {session.task.id}")
        self.code = session.problem.code

    def act(self, session: MathSession) -> str:
        """The next action."""
        names = set(map(name_of, session.calls.tools))
        if self.code is None or "python" not in names or session.computed():
            return session.write("answer", session.problem.answer)
        return session.write("python", self.code)


class ClumsyExpert(GoodExpert):
    """A good expert that errs with given probabilities and recovers."""

    def __init__(self, session: MathSession, seed: int | str, mistakes: Mistakes) -> None:
        super().__init__(session, seed)
        self.mistakes = mistakes

    def act(self, session: MathSession) -> str:
        """The next action, now and then a mistake."""
        draw = self.rng.random()
        if session.horizon - session.turns > 2 and self.code is not None and len(session.calls.tools) > 1:
            for name in Mistakes.__dataclass_fields__:
                draw -= getattr(self.mistakes, name)
                if draw < 0:
                    text = getattr(self, f"_{name}")(session, self.code)
                    if text is not None:
                        return text
                    break
        return super().act(session)

    def _slip(self, session: MathSession, code: str) -> str | None:
        if session.computed():
            return None
        numbers = list(re.finditer(r"\b[1-9]\d*\b", code))
        chosen = self.rng.choice(numbers)
        wrong = str(int(chosen[0]) + self.rng.choice((1, 2, 10)))
        return session.write("python", code[: chosen.start()] + wrong + code[chosen.end() :])

    def _broken(self, session: MathSession, code: str) -> str | None:
        if session.computed():
            return None
        at = self.rng.choice([i for i, c in enumerate(code) if c in "()*+-/%=,"] or [len(code) - 1])
        return session.write("python", code[:at] + "?" + code[at + 1 :])

    def _repeat(self, session: MathSession, code: str) -> str | None:
        return session.write("python", session.snippets[-1]) if session.snippets else None

    def _malformed(self, session: MathSession, code: str) -> str | None:
        return None if session.computed() else code
