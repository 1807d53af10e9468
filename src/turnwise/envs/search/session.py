"""A running episode of ``env=search``: the policy searches, reads and answers."""

from __future__ import annotations

from turnwise.data.tool_schema import make_tool
from turnwise.envs.environment import Step
from turnwise.envs.search.pages_and_questions import Page
from turnwise.envs.search.question_environment import ANSWER, NOTHING, QuestionSession

TOOLS = (
    make_tool("search", "Find pages. Returns the best matches with their text.", query=("string", "what to look for")),
    ANSWER,
)
SHOWN = 2_000  # maximum number of characters of one page in a result


class SearchSession(QuestionSession):
    """A running episode of ``env=search``. The base class describes the arguments."""

    seen: tuple[str, ...] = ()  # titles of all pages that search results have shown, in the order of appearance

    def missing(self) -> list[str]:
        """Returns the titles of the evidence pages that no search result has shown yet."""
        return [title for title in self.question.titles if title not in self.seen]

    def find(self, query: str) -> tuple[Page, ...]:
        """Returns the pages that a search for the query would show."""
        return self.retriever(query, self.most)

    def use(self, name: str, argument: str) -> Step:
        if name == "answer":
            return self.answered(argument)
        found = self.find(argument)
        self.seen += tuple(page.title for page in found if page.title not in self.seen)
        lines = [f"[{i}] {page.title}: {page.text[:SHOWN]}" for i, page in enumerate(found, start=1)]
        return Step("\n".join(lines) or NOTHING)
