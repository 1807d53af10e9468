"""A running episode of ``env=browse``: the policy searches for pages, opens one, finds words on it, and answers."""

from __future__ import annotations

from turnwise.data.tool_schema import make_tool
from turnwise.envs.calls import Calls
from turnwise.envs.environment import Step
from turnwise.envs.search.pages_and_questions import Fact, Page, Pages, Question
from turnwise.envs.search.question_environment import ANSWER, NOTHING, QuestionSession
from turnwise.envs.search.retrievers import Retriever
from turnwise.types import Task

TOOLS = (
    make_tool("search", "Find pages. Returns the titles of the best matches.", query=("string", "what to look for")),
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
SHOWN = 8  # maximum number of sentences that ``find`` shows
NO_PAGE = "There is no such page."
NOT_OPEN = "No page is open."
NOT_THERE = "The page does not say."


class BrowseSession(QuestionSession):
    """A running episode of ``env=browse``.

    :class:`~turnwise.envs.search.question_environment.QuestionSession` describes the arguments that are not listed.

    Args:
        pages: the pages that can be opened.
        window: number of sentences that an opened page shows at once.

    Attributes:
        listed: the titles that any search has listed so far.
        results: the titles that the last search listed.
        page: the open page; None if no page is open.
        collected: the facts of the evidence that the policy has been shown so far.
    """

    def __init__(
        self,
        task: Task,
        question: Question,
        pages: Pages,
        retriever: Retriever,
        results: int,
        window: int,
        calls: Calls,
        horizon: int,
        floor: float,
    ) -> None:
        super().__init__(task, question, retriever, results, calls, horizon, floor)
        self.pages, self.window = pages, window
        self.listed: tuple[str, ...] = ()
        self.results: tuple[str, ...] = ()
        self.page: Page | None = None
        self.collected: frozenset[Fact] = frozenset()

    def missing(self) -> list[Fact]:
        """Returns the facts of the evidence that the policy has not been shown yet, in the order of the evidence."""
        return [fact for fact in self.question.evidence if fact not in self.collected]

    def use(self, name: str, argument: str) -> Step:
        if name == "answer":
            return self.answered(argument)
        if name == "search":
            return Step(self._search(argument))
        return Step(self._open(argument) if name == "open" else self._find(argument))

    def _search(self, query: str) -> str:
        self.results = tuple(page.title for page in self.retriever(query, self.most))
        self.listed += tuple(title for title in self.results if title not in self.listed)
        return "\n".join(f"[{i}] {title}" for i, title in enumerate(self.results, start=1)) or NOTHING

    def _open(self, name: str) -> str:
        number = name.strip("[]")
        if number.isascii() and number.isdecimal() and 1 <= int(number[:9]) <= len(self.results):
            name = self.results[int(number) - 1]
        page = self.pages.named(name)
        if page is None:
            return NO_PAGE
        self.page = page
        more = len(page.sentences) - self.window
        text = self._show(page.sentences[: self.window])
        return f"{page.title}: {text}" + (f" ({more} more)" if more > 0 else "")

    def _find(self, words: str) -> str:
        if self.page is None:
            return NOT_OPEN
        wanted = words.casefold().split()
        found = [s for s in self.page.sentences if all(word in s.casefold() for word in wanted)]
        return self._show(tuple(found[:SHOWN])) or NOT_THERE

    def _show(self, sentences: tuple[str, ...]) -> str:
        assert self.page is not None
        self.collected |= {(self.page.title, sentence) for sentence in sentences} & set(self.question.evidence)
        return " ".join(sentences)
