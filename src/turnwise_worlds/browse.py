"""``env=browse``: the questions of ``env=search``, answered from pages that have to be opened and read in parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from turnwise.data.tool_schema import make_tool
from turnwise_worlds.scripted_experts import Chances
from turnwise_worlds.search.encyclopaedia import Fact, Page
from turnwise_worlds.search.environment import ANSWER, NOTHING, QuestionEnv, QuestionExpert, QuestionSession, malformed

SHOWN = 8  # maximum number of sentences that ``find`` shows
NO_PAGE = "There is no such page."
NOT_OPEN = "No page is open."
NOT_THERE = "The page does not say."


class BrowseSession(QuestionSession):
    vain = (NOTHING, NO_PAGE, NOT_OPEN, NOT_THERE)
    listed: tuple[str, ...] = ()  # the titles that any search has listed so far
    results: tuple[str, ...] = ()  # those that the last search listed
    page: Page | None = None  # the open page
    collected: frozenset[Fact] = frozenset()  # the facts of the evidence that the policy has been shown

    def missing(self) -> list[Fact]:
        return [fact for fact in self.question.evidence if fact not in self.collected]

    def look(self, tool: str, argument: str) -> str:
        return {"search": self._search, "open": self._open, "find": self._find}[tool](argument)

    def useful(self, tool: str, argument: str, expert: tuple[str, str] | None) -> bool:
        after = self.fork()
        after.look(tool, argument)
        return distance(after) < distance(self)

    def _search(self, query: str) -> str:
        self.results = tuple(page.title for page in self.env.find(query, self.env.results))
        self.listed += tuple(title for title in self.results if title not in self.listed)
        return "\n".join(f"[{i}] {title}" for i, title in enumerate(self.results, start=1)) or NOTHING

    def _open(self, name: str) -> str:
        number = name.strip("[]")
        if number.isascii() and number.isdecimal() and 1 <= int(number[:9]) <= len(self.results):
            name = self.results[int(number) - 1]
        pages, window = self.env.pages, self.env.window
        assert pages is not None and window is not None  # of an environment whose pages are opened
        page = pages.named(name)
        if page is None:
            return NO_PAGE
        self.page = page
        more = len(page.sentences) - window
        text = self._show(page.sentences[:window])
        return f"{page.title}: {text}" + (f" ({more} more)" if more > 0 else "")

    def _find(self, words: str) -> str:
        if self.page is None:
            return NOT_OPEN
        wanted = words.casefold().split()
        sentences = [s for s in self.page.sentences if all(word in s.casefold() for word in wanted)]
        return self._show(tuple(sentences[:SHOWN])) or NOT_THERE

    def _show(self, sentences: tuple[str, ...]) -> str:
        assert self.page is not None
        self.collected |= {(self.page.title, sentence) for sentence in sentences} & set(self.question.evidence)
        return " ".join(sentences)


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    stray: float = 0.1  # opens a page that has nothing to do with the question
    vain: float = 0.1  # looks on the open page for the title of another page, which the expert needs next
    again: float = 0.06  # searches for a page that an earlier search has already listed
    malformed: float = 0.06  # writes a reply that is not a valid call


class BrowseExpert(QuestionExpert[BrowseSession]):
    """An expert that collects the missing facts one by one with as few calls as possible, and then answers."""

    def next_fact(self, session: BrowseSession) -> Fact | None:
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
            return session.write("find", word_to_find(session.page, sentence))
        if title in session.results:
            return session.write("open", str(session.results.index(title) + 1))
        if title in session.listed:
            return session.write("open", title)
        return session.write("search", title)

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


def word_to_find(page: Page, sentence: str) -> str:
    """Returns the longest word of a sentence that no other sentence of the page contains, if possible a lower-case one,
    because a reader does not know the names yet; otherwise the whole sentence.
    """
    others = [other.casefold() for other in page.sentences if other != sentence]
    words = re.findall(r"\w+", sentence)
    own = [word for word in words if not any(word.casefold() in other for other in others)]
    ordinary = [word for word in own if word.isalpha() and word.islower()]
    return max(ordinary or own or [sentence], key=len)


def distance(session: BrowseSession) -> int:
    """Sums over the evidence: 0 for a fact that was shown, 1 if its page is open, 2 if it was listed, 3 otherwise."""
    total = 0
    for title, _ in session.missing():
        here = session.page is not None and session.page.title == title
        total += 1 if here else 2 if title in session.listed else 3
    return total


class BrowseEnv(QuestionEnv[BrowseSession]):
    """A search lists only titles, and an opened page shows only its beginning."""

    name = "browse"
    opens = True
    evidence = "facts"
    session, expert, errs = BrowseSession, BrowseExpert, Mistakes
    usual = 20, {"tiny": 5, "full": 5}, 2
    tools = (
        make_tool(
            "search", "Find pages. Returns the titles of the best matches.", query=("string", "what to look for")
        ),
        make_tool(
            "open",
            "Open a page by its title or its number in the last results. Shows how it begins.",
            page=("string", "title or number"),
        ),
        make_tool(
            "find",
            "Show the sentences of the open page that have all of these words.",
            words=("string", "what the sentences have"),
        ),
        ANSWER,
    )
