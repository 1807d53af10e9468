"""The scripted experts of ``env=search``, which search for the pages with evidence one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnwise.envs.experts import Chances, Clumsy, Expert
from turnwise.envs.search.question_environment import malformed
from turnwise.envs.search.session import SearchSession


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """For each kind of mistake, the probability that the clumsy scripted expert makes it in a turn.

    The expert makes a mistake only while enough turns are left to correct it.
    """

    repeat: float = 0.06  # repeats the last search
    stray: float = 0.12  # searches for a page that has nothing to do with the question
    vague: float = 0.12  # searches with ordinary words of the question and without a name
    malformed: float = 0.06  # writes a reply that is not a valid call


class GoodExpert(Expert[SearchSession]):
    """An expert that searches for each page of the evidence by its title, then answers.

    If the question compares two things, such as two towns, the seed decides the order of the searches.
    """

    def __init__(self, session: SearchSession, seed: int | str) -> None:
        super().__init__(session, seed)
        self.asked: list[str] = []
        self.swap = session.question.kind == "comparison" and self.rng.random() < 0.5

    def plan(self, session: SearchSession) -> list[str]:
        """Returns the titles of the evidence pages that the expert still has to search for, in order.

        A title for which the expert has searched is left out, even if the search did not show the page.
        """
        missing = [title for title in session.missing() if title not in self.asked]
        return missing[::-1] if self.swap else missing

    def best(self, session: SearchSession) -> str:
        plan = self.plan(session)
        if not plan:
            return session.write("answer", session.question.answers[0])
        self.asked.append(plan[0])
        return session.write("search", plan[0])


class ClumsyExpert(Clumsy[SearchSession], GoodExpert):
    """An expert like :class:`GoodExpert` that sometimes makes a mistake (:class:`Mistakes`) and recovers from it."""

    def has_room(self, session: SearchSession) -> bool:
        return session.horizon - session.turns > len(self.plan(session)) + 1

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
        return malformed(session, session.write("search", title), f"find {title}")
