"""``env=search``: questions that are answered by searching pages."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from annotated_types import Ge, Interval
from pydantic import NonNegativeInt, PositiveInt

from turnwise.data.tool_schema import make_tool
from turnwise.env import Level, Step, Verifier, first_tasks
from turnwise.errors import InputError
from turnwise.types import Task
from turnwise_worlds.data_files import read_splits
from turnwise_worlds.scripted_experts import Chances, Expert
from turnwise_worlds.search.encyclopaedia import Encyclopaedia, Pages, Question
from turnwise_worlds.search.question_files import F1_FLOOR, exact, f1, normalise, read_pages, read_questions
from turnwise_worlds.search.retrieval import Bm25, Retriever, Served
from turnwise_worlds.tool_environment import ANSWERED, Hermes, Style, TextSession, ToolEnv

ANSWER = make_tool(
    "answer",
    "Give the final answer: a name, a number, a date, yes or no. This ends the episode.",
    text=("string", "the answer"),
)
NOTHING = "Nothing found."
_ASKED = "Answer the question with facts that you find."


class QuestionSession(TextSession):
    vain: ClassVar[tuple[str, ...]] = (NOTHING,)  # the observations that show nothing

    def __init__(self, task: Task, env: QuestionEnv[Any]) -> None:
        self.env, self.question = env, env.question(task)
        super().__init__(task, env._calls, env.horizon, _ASKED, self.question.text)

    @abstractmethod
    def missing(self) -> Sequence[Any]:
        """Returns the evidence that the policy has not seen yet, in the order in which the evidence can be found."""

    @abstractmethod
    def look(self, tool: str, argument: str) -> str: ...

    @abstractmethod
    def useful(self, tool: str, argument: str, expert: tuple[str, str] | None) -> bool:
        """Returns whether a call of any tool but ``answer`` brings the policy closer to the answer."""

    def use(self, name: str, argument: str) -> Step:
        """An exact answer wins. The reward of another answer is its F1 if that is at least ``env.floor``."""
        if name != "answer":
            return Step(self.look(name, argument))
        right, best = exact(argument, self.question.answers), max(f1(argument, one) for one in self.question.answers)
        reward = 1.0 if right else best if best >= self.env.floor else 0.0
        info = {"exact": float(right), "f1": best} | ({"score": reward} if self.env.score else {})
        return Step(ANSWERED, reward, True, right, info)

    def shows(self, tool: str, argument: str) -> str:
        """Returns what a call would show now; empty if it would show nothing."""
        shown = self.fork().look(tool, argument)
        return "" if shown in self.vain else shown


Q = TypeVar("Q", bound=QuestionSession)


class QuestionEnv(ToolEnv[Q]):
    """Questions and pages of the generated encyclopaedia, or of the user's files, where a split without a file has no
    tasks. ``conf/env/search.yaml`` explains the arguments. A subclass has the tools, and:
    """

    tools: Sequence[Mapping[str, Any]]
    opens = False  # whether the policy can open pages: the pages themselves are needed then, not only a retriever
    evidence = "pages"  # what error messages call the evidence that the scripted experts need
    usual: tuple[int, Mapping[Level, int], int | None]  # defaults of horizon, results at each level, and window
    errs: type[Chances]  # of ``mistakes``

    def __init__(
        self,
        level: Level = "full",
        edition: NonNegativeInt = 0,
        countries: Annotated[int, Ge(2)] | None = None,  # one of them is held out
        results: PositiveInt | None = None,
        window: PositiveInt | None = None,
        horizon: PositiveInt | None = None,
        calls: Style | None = None,
        floor: Annotated[float, Interval(ge=0, le=1)] = F1_FLOOR,
        score: Literal["f1"] | None = None,
        files: Mapping[str, str] | None = None,
        corpus: str | None = None,
        retriever: str | None = None,
        mistakes: Chances | None = None,
        verifier: Verifier | None = None,
        hops: Sequence[int] | None = None,
    ) -> None:
        turns, most, sentences = self.usual
        super().__init__(level, horizon or turns, calls, self.tools)
        self.results, self.window = results or most[level], window or sentences
        self.floor, self.score, self.mistakes = floor, score, mistakes or self.errs()
        self.verifier = verifier or "oracle"
        self.retriever, self.corpus, self.waits = retriever, corpus, retriever is not None  # a server is waited for
        read, digest = read_splits(files, read_questions)
        self._read = {split: questions for split, (questions, _) in read.items()}
        pages = [page for _, own in read.values() for page in own]
        self.source = f"files {digest}"
        if not files:
            made = Encyclopaedia(level, edition, countries, hops)
            pages, self._made = list(made.pages), cache(made.questions)
            self.source = f"{level} {edition} {countries}" + (f" {list(hops)}" if hops is not None else "")
        if corpus is not None:
            pages = read_pages(corpus, "corpus")
        if not pages and (self.opens or retriever is None):
            other = "" if self.opens else ", or set retriever to the address of a server"
            raise ValueError(f"corpus: the question files contain no pages; set corpus to a file of pages{other}")
        self.pages = Pages(pages) if pages else None
        self.find: Retriever = Served(retriever) if retriever is not None else Bm25(cast(Pages, self.pages))

    def solution(self, task: Task) -> str:
        session = self.reset(task)
        return session.write("answer", session.question.answers[0])

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        where = f"split {split} of {self.source}"
        if self._read:
            questions = first_tasks(self._read.get(split, ()), count, where, f"questions {split} {seed}")
        else:
            questions = first_tasks(self._made(split, seed), count, where)
        source = {"source": self.source}
        return [Task(self.name, f"{split}/{q.key}", split, q.data() | source, q.kind) for q in questions]

    def question(self, task: Task) -> Question:
        made = task.data.get("source")
        if made is not None and made != self.source:
            raise InputError(
                f"task {task.id}: it was made with the pages {made!r}, but this run has the pages {self.source!r} (level, "
                "edition, countries and hops, or a digest of files); use the settings of the task"
            )
        return Question.of(task.data)

    def unknown(self, session: Q) -> str:
        return "" if session.question.evidence else f"the question file names no supporting {self.evidence}"

    def accepts(self, session: Q, action: str, expert: str) -> bool:
        """``oracle`` accepts a right answer if the policy has seen all evidence or the expert answers too, and other
        calls that are useful. ``demonstrated`` accepts what shows the same as the expert's call, or answers the same.
        """
        made, wanted = session.read(action), session.read(expert)
        if session.done or made is None:
            return False
        tool, argument = made
        if self.verifier == "oracle":
            if tool != "answer":
                return session.useful(tool, argument, wanted)
            supported = not session.missing() or (wanted is not None and wanted[0] == "answer")
            return supported and exact(argument, session.question.answers)
        if wanted is None or tool != wanted[0]:
            return False
        if tool == "answer":
            return normalise(argument) == normalise(wanted[1])
        shown = session.shows(*wanted)
        return bool(shown) and session.shows(tool, argument) == shown


class QuestionExpert(Expert[Q]):
    """If a question compares two things, the seed decides the order in which the expert looks them up."""

    def __init__(self, session: Q, seed: int | str) -> None:
        super().__init__(session, seed)
        self.swap = session.question.kind == "comparison" and self.rng.random() < 0.5


def malformed(session: QuestionSession, action: str, short: str) -> str:
    return action.replace("</tool_call>", "").strip() if isinstance(session.calls, Hermes) else short


SHOWN = 2_000  # maximum number of characters of one page in a result


class SearchSession(QuestionSession):
    seen: tuple[str, ...] = ()  # titles of all pages that search results have shown, in the order of appearance

    def missing(self) -> list[str]:
        return [title for title in self.question.titles if title not in self.seen]

    def look(self, tool: str, argument: str) -> str:
        pages = self.env.find(argument, self.env.results)
        self.seen += tuple(page.title for page in pages if page.title not in self.seen)
        texts = (" ".join(page.sentences[: self.env.window])[:SHOWN] for page in pages)
        return (
            "\n".join(f"[{i}] {page.title}: {text}" for i, (page, text) in enumerate(zip(pages, texts), 1)) or NOTHING
        )

    def useful(self, tool: str, argument: str, expert: tuple[str, str] | None) -> bool:
        """A search is useful if it shows a page of the evidence for the first time. If no evidence
        is recorded for the question, the search must show the first page that the expert's search newly shows.
        """
        shown = self.new_titles(argument)
        if self.question.evidence:
            return any(title in self.missing() for title in shown)
        if expert is None or expert[0] != "search":
            return False
        expected = self.new_titles(expert[1])
        return bool(expected) and expected[0] in shown

    def new_titles(self, query: str) -> list[str]:
        pages = self.env.find(query, self.env.results)
        return [page.title for page in pages if page.title not in self.seen]


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    repeat: float = 0.06  # repeats the last search
    stray: float = 0.12  # searches for a page that has nothing to do with the question
    vague: float = 0.12  # searches with ordinary words of the question and without a name
    malformed: float = 0.06  # writes a reply that is not a valid call


class SearchExpert(QuestionExpert[SearchSession]):
    def __init__(self, session: SearchSession, seed: int | str) -> None:
        super().__init__(session, seed)
        self.asked: list[str] = []

    def plan(self, session: SearchSession) -> list[str]:
        """Returns the titles of the evidence that the expert has not searched for yet, found or not."""
        missing = [title for title in session.missing() if title not in self.asked]
        return missing[::-1] if self.swap else missing

    def best(self, session: SearchSession) -> str:
        plan = self.plan(session)
        if not plan:
            return session.write("answer", session.question.answers[0])
        self.asked.append(plan[0])
        return session.write("search", plan[0])

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


class SearchEnv(QuestionEnv[SearchSession]):
    name = "search"
    session, expert, errs = SearchSession, SearchExpert, Mistakes
    usual = 8, {"tiny": 1, "full": 3}, None
    tools = (
        make_tool(
            "search", "Find pages. Returns the best matches with their text.", query=("string", "what to look for")
        ),
        ANSWER,
    )
