"""Scripted experts of ``env=browse``, which know the pages with the evidence.

The experts search for these pages, open them and find words on them until all evidence was shown, and then answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnwise.envs.browse.session import BrowseSession
from turnwise.envs.experts import Chances, Clumsy, Expert
from turnwise.envs.search.pages_and_questions import Fact, Page
from turnwise.envs.search.question_environment import malformed


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """The probabilities of the clumsy expert's mistakes in a turn. No mistake is made if too few turns are left."""

    stray: float = 0.1  # opens a page that has nothing to do with the question
    vain: float = 0.1  # looks on the open page for the title of another page, which the expert needs next
    again: float = 0.06  # searches for a page that an earlier search has already listed
    malformed: float = 0.06  # writes a reply that is not a valid call


class GoodExpert(Expert[BrowseSession]):
    """An expert that collects the missing facts one by one with as few calls as possible, and then answers.

    If the question compares two things, the seed decides which thing the expert reads about first.
    """

    def __init__(self, session: BrowseSession, seed: int | str) -> None:
        super().__init__(session, seed)
        self.swap = session.question.kind == "comparison" and self.rng.random() < 0.5

    def next_fact(self, session: BrowseSession) -> Fact | None:
        """Returns the fact that the expert looks for next; None if all facts of the evidence were shown."""
        missing = session.missing()
        if not missing:
            return None
        return missing[-1] if self.swap else missing[0]

    def best(self, session: BrowseSession) -> str:
        fact = self.next_fact(session)
        if fact is None:
            return session.write("answer", session.question.answers[0])
        title, sentence = fact
        if session.page is not None and session.page.title == title:
            return session.write("find", key_of(session.page, sentence))
        if title in session.results:
            return session.write("open", str(session.results.index(title) + 1))
        if title in session.listed:
            return session.write("open", title)
        return session.write("search", title)


def key_of(page: Page, sentence: str) -> str:
    """Returns a text with which a sentence can be found on the page.

    The text is the longest lower-case word of the sentence that no other sentence of the page contains. Lower-case
    words are preferred because a reader does not know the names yet. If there is no lower-case word of this kind, the
    text is the longest word that no other sentence contains, and otherwise the whole sentence.
    """
    others = [other.casefold() for other in page.sentences if other != sentence]
    words = re.findall(r"\w+", sentence)
    own = [word for word in words if not any(word.casefold() in other for other in others)]
    ordinary = [word for word in own if word.isalpha() and word.islower()]
    return max(ordinary or own or [sentence], key=len)


class ClumsyExpert(Clumsy[BrowseSession], GoodExpert):
    """An expert that acts like the good expert, but sometimes makes one of the :class:`Mistakes` and then recovers."""

    def has_room(self, session: BrowseSession) -> bool:
        return session.horizon - session.turns > 3 * len(session.missing()) + 3  # a page may have to be opened again

    def _stray(self, session: BrowseSession) -> str | None:
        needed = session.question.titles
        others = [i for i, title in enumerate(session.results, start=1) if title not in needed]
        return session.write("open", str(self.rng.choice(others))) if others else None

    def _vain(self, session: BrowseSession) -> str | None:
        fact = self.next_fact(session)
        if session.page is None or fact is None or fact[0] == session.page.title:
            return None
        return session.write("find", fact[0])

    def _again(self, session: BrowseSession) -> str | None:
        return session.write("search", self.rng.choice(session.listed)) if session.listed else None

    def _malformed(self, session: BrowseSession) -> str | None:
        action = self.best(session)
        return malformed(session, action, f"go {action}")
