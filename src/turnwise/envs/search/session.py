"""A live episode of ``env=search``: search, read, answer."""

from __future__ import annotations

from turnwise.envs.calls import Calls, tool
from turnwise.envs.environment import Step
from turnwise.envs.search.pages import Page, Question
from turnwise.envs.search.retrieval import Retriever
from turnwise.envs.search.scoring import score
from turnwise.envs.tool_session import ToolSession
from turnwise.types import Task

TOOLS = (
    tool("search", "Find pages. Returns the best matches with their text.", query=("string", "what to look for")),
    tool(
        "answer",
        "Give the final answer: a name, a number, a date, yes or no. This ends the episode.",
        text=("string", "the answer"),
    ),
)
SHOWN = 2_000  # characters of one page in a result
NOTHING = "Nothing found."
ANSWERED = "The answer was noted."
ASKED = "Answer the question with facts that you find."


class SearchSession(ToolSession):
    """``seen`` holds the titles of all pages that results have shown, in order."""

    def __init__(
        self,
        task: Task,
        question: Question,
        retriever: Retriever,
        results: int,
        calls: Calls,
        horizon: int,
        floor: float,
    ) -> None:
        super().__init__(task, calls, horizon, ASKED, question.text)
        self.question, self.retriever, self.results, self.floor = question, retriever, results, floor
        self.seen: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Titles of the evidence that no result has shown yet, in the order in which they can be found."""
        return [title for title in self.question.titles if title not in self.seen]

    def find(self, query: str) -> tuple[Page, ...]:
        """What a search would show."""
        return self.retriever(query, self.results)

    def act(self, name: str, argument: str) -> Step:
        if name == "search":
            found = self.find(argument)
            self.seen += tuple(page.title for page in found if page.title not in self.seen)
            lines = [f"[{i}] {page.title}: {page.text[:SHOWN]}" for i, page in enumerate(found, start=1)]
            return Step("\n".join(lines) or NOTHING)
        return answered(argument, self.question, self.floor)


def answered(answer: str, question: Question, floor: float) -> Step:
    """The step that ends an episode: it pays 1 for an exact match, else F1 from ``floor`` on; only the exact one has won."""
    result = score(answer, question.answers)
    info = {"exact": float(result.exact), "f1": result.f1}
    return Step(ANSWERED, result.reward(floor), True, result.exact, info)
