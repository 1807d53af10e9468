"""Scripted experts of ``env=search``. They know where the evidence stands and look it up page by page."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from turnwise.envs.calls import Hermes
from turnwise.envs.search.session import SearchSession

MOST = 0.8  # of mistakes together: beyond it hardly a turn would be left to act well


@dataclass(frozen=True, slots=True)
class Mistakes:
    """Probabilities per turn of the clumsy expert; it errs only as long as the turns left suffice to put it right.

    Raises:
        ValueError: one lies outside [0, 1], or they sum to more than 0.8.
    """

    repeat: float = 0.06  # ask again what was just asked
    stray: float = 0.12  # follow a page that has nothing to do with the question
    vague: float = 0.12  # ask with the question's ordinary words and no name
    malformed: float = 0.06  # a call that is none

    def __post_init__(self) -> None:
        check_mistakes({name: getattr(self, name) for name in self.__dataclass_fields__})


def check_mistakes(values: dict[str, float]) -> None:
    """Raises ``ValueError`` unless they are probabilities that leave room for good turns."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"mistakes.{name}: a probability lies in [0, 1], got {value}")
    if sum(values.values()) > MOST:
        raise ValueError(
            f"mistakes: the probabilities sum to {sum(values.values()):g}; at most {MOST}, or no task ends"
        )


class GoodExpert:
    """Looks up what is missing by its name, then answers. One instance plays one episode.

    Args:
        seed: decides with which of two things compared it begins.
    """

    def __init__(self, session: SearchSession, seed: int | str) -> None:
        self.rng = random.Random(f"search expert {seed} {session.task.id}")
        self.asked: list[str] = []
        self.swap = session.question.kind == "comparison" and self.rng.random() < 0.5

    def plan(self, session: SearchSession) -> list[str]:
        """Titles to look up, next one first; one that a search did not bring is not asked for again."""
        missing = [title for title in session.missing() if title not in self.asked]
        return missing[::-1] if self.swap else missing

    def act(self, session: SearchSession) -> str:
        """The next action."""
        plan = self.plan(session)
        if not plan:
            return session.write("answer", session.question.answers[0])
        self.asked.append(plan[0])
        return session.write("search", plan[0])


class ClumsyExpert(GoodExpert):
    """A good expert that errs with given probabilities and recovers."""

    def __init__(self, session: SearchSession, seed: int | str, mistakes: Mistakes) -> None:
        super().__init__(session, seed)
        self.mistakes = mistakes

    def act(self, session: SearchSession) -> str:
        """The next action, now and then a mistake."""
        needed = len(self.plan(session)) + 1
        draw = self.rng.random()
        if session.horizon - session.turns > needed:
            for name in Mistakes.__dataclass_fields__:
                draw -= getattr(self.mistakes, name)
                if draw < 0:
                    text = getattr(self, f"_{name}")(session)
                    if text is not None:
                        return text
                    break
        return super().act(session)

    def _repeat(self, session: SearchSession) -> str | None:
        return session.write("search", self.asked[-1]) if self.asked else None

    def _stray(self, session: SearchSession) -> str | None:
        others = [title for title in session.seen if title not in session.question.titles]
        return session.write("search", self.rng.choice(others)) if others else None

    def _vague(self, session: SearchSession) -> str | None:
        words = re.findall(r"\b[a-z]+\b", session.question.text)
        return session.write("search", " ".join(words)) if words else None

    def _malformed(self, session: SearchSession) -> str | None:
        title = (self.plan(session) or [session.question.answers[0]])[0]
        if isinstance(session.calls, Hermes):
            return session.write("search", title).replace("</tool_call>", "").strip()
        return f"find {title}"
