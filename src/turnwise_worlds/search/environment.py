"""``env=search``: questions that are answered by searching pages."""

from __future__ import annotations

import hashlib
import random
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from turnwise.data.tool_schema import make_tool
from turnwise.env import Level, Step, Verifier, check_split, check_verifier
from turnwise.errors import InputError
from turnwise.types import Task
from turnwise_worlds.scripted import Chances, Clumsy, Expert
from turnwise_worlds.search.encyclopaedia import Encyclopaedia, Page, Pages, Question
from turnwise_worlds.search.retrieval import (
    F1_FLOOR,
    Bm25,
    Retriever,
    Served,
    normalise,
    read_pages,
    read_questions,
    score,
)
from turnwise_worlds.tools import Calls, Hermes, Style, TextSession, ToolEnv

ANSWER = make_tool(
    "answer",
    "Give the final answer: a name, a number, a date, yes or no. This ends the episode.",
    text=("string", "the answer"),
)
ANSWERED = "The answer was noted."
NOTHING = "Nothing found."
_ASKED = "Answer the question with facts that you find."


class QuestionSession(TextSession):
    """An episode in which the policy answers a question. The answer ends the episode."""

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
        super().__init__(task, calls, horizon, _ASKED, question.text)
        self.question, self.retriever, self.most, self.floor = question, retriever, results, floor

    @abstractmethod
    def missing(self) -> Sequence[Any]:
        """Returns the evidence that the policy has not seen yet, in the order in which the evidence can be found."""

    def answered(self, answer: str) -> Step:
        """Returns the last step of the episode.

        An answer that matches a right answer exactly gets the reward 1 and wins. The reward of any other answer is its
        F1 if the F1 is at least ``floor``, otherwise 0.
        """
        result = score(answer, self.question.answers)
        info = {"exact": float(result.exact), "f1": result.f1}
        return Step(ANSWERED, result.reward(self.floor), True, result.exact, info)

    def accepts_answer(self, answer: str, expert: tuple[str, str] | None) -> bool:
        """Returns whether an answer is right, and either the policy has seen all evidence or the expert answers too.

        ``expert`` is the expert's call in this turn as a pair (tool, argument), or None if it is no valid call.
        """
        supported = not self.missing() or (expert is not None and expert[0] == "answer")
        return supported and score(answer, self.question.answers).exact


Q = TypeVar("Q", bound=QuestionSession)


class QuestionEnv(ToolEnv[Q]):
    """Base class of environments with questions. ``turnwise_worlds.search.SearchEnv`` describes the arguments.

    Questions and pages come from the generated encyclopaedia, or from the user's files. A split without a question file
    has no tasks then.

    Attributes:
        opens: whether the policy can open pages. If so, the environment needs the pages themselves, not only a
            retriever.
        evidence: the word by which error messages name the evidence that the scripted experts need, such as ``pages``.
    """

    opens = False
    evidence = "pages"

    def __init__(
        self,
        tools: Sequence[Mapping[str, Any]],
        level: Level,
        edition: int,
        countries: int | None,
        horizon: int,
        calls: Style | None,
        floor: float,
        files: Mapping[str, str] | None,
        corpus: str | None,
        retriever: str | None,
        hops: Sequence[int] | None = None,
    ) -> None:
        if not 0 <= floor <= 1:
            raise ValueError(f"floor: must be in [0, 1], the range of F1, got {floor}")
        super().__init__(level, horizon, calls, tools)
        self.floor = floor
        for split in files or ():
            check_split(split, f"files.{split}")
        self._made = None if files else Encyclopaedia(level, edition, countries, hops)
        self._read: dict[str, list[Question]] = {}
        pages: list[Page] = list(self._made.pages) if self._made else []
        for split, path in (files or {}).items():
            self._read[split], own = read_questions(path, f"files.{split}")
            pages += own if corpus is None else ()
        if corpus is not None:
            pages = read_pages(corpus, "corpus")
        self._pages = Pages(pages) if pages else None
        self._ordered = cache(self._ordered_uncached)
        self.source = f"{level} {edition} {countries}" + (f" {list(hops)}" if hops is not None else "")
        if files:
            self.source = f"files {hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]}"
        self.retriever, self.corpus = retriever, corpus
        self.waits = retriever is not None  # searches then wait for a server
        if self._pages is None and (self.opens or retriever is None):
            other = "" if self.opens else ", or set retriever to the address of a server"
            raise ValueError(f"corpus: the question files contain no pages; set corpus to a file of pages{other}")
        self._retriever: Retriever
        if retriever is not None:
            self._retriever = Served(retriever)
        elif self._pages is not None:
            self._retriever = Bm25(self._pages)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        questions = self._ordered(split, seed)
        if count > len(questions):
            remedy = (
                f"set env.files.{split} to a file with more questions"
                if self._made is None
                else "raise env.countries, or set env.level=full"
            )
            raise InputError(
                f"env={self.name}: the split {split} has {len(questions)} questions, but {count} are needed; {remedy}, "
                "or lower data.trajectories, states.count or eval.tasks"
            )
        source = {"source": self.source}
        return [Task(self.name, f"{split}/{q.key}", split, q.data() | source, q.kind) for q in questions[:count]]

    def question(self, task: Task) -> Question:
        made = task.data.get("source")
        if made is not None and made != self.source:
            raise ValueError(
                f"task {task.id}: the task was made with the pages {made!r}, but this run has the pages "
                f"{self.source!r} (level, edition, countries and hops, or a digest of files); use the settings of the "
                "task"
            )
        return Question.of(task.data)

    def _ordered_uncached(self, split: str, seed: int) -> list[Question]:
        if self._made is not None:
            return self._made.questions(split, seed)
        questions = list(self._read.get(split, ()))
        random.Random(f"questions {split} {seed}").shuffle(questions)
        return questions

    def unknown(self, session: Q) -> str:
        return "" if session.question.evidence else f"the question file names no supporting {self.evidence}"


def malformed(session: QuestionSession, action: str, short: str) -> str:
    """Returns a reply that is not a valid call: ``action`` without its closing tag, or ``short`` for short calls."""
    return action.replace("</tool_call>", "").strip() if isinstance(session.calls, Hermes) else short


TOOLS = (
    make_tool("search", "Find pages. Returns the best matches with their text.", query=("string", "what to look for")),
    ANSWER,
)
SHOWN = 2_000  # maximum number of characters of one page in a result


class SearchSession(QuestionSession):
    """A running episode of ``env=search``. The base class describes the arguments."""

    seen: tuple[str, ...] = ()  # titles of all pages that search results have shown, in the order of appearance

    def missing(self) -> list[str]:
        return [title for title in self.question.titles if title not in self.seen]

    def find(self, query: str) -> tuple[Page, ...]:
        return self.retriever(query, self.most)

    def use(self, name: str, argument: str) -> Step:
        if name == "answer":
            return self.answered(argument)
        found = self.find(argument)
        self.seen += tuple(page.title for page in found if page.title not in self.seen)
        lines = [f"[{i}] {page.title}: {page.text[:SHOWN]}" for i, page in enumerate(found, start=1)]
        return Step("\n".join(lines) or NOTHING)


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


def oracle_accepts(session: SearchSession, action: str, expert: str) -> bool:
    """Returns whether the verifier ``oracle`` accepts the policy's reply ``action``. ``session`` is not changed."""
    call = session.read(action)
    if session.done or call is None:
        return False
    tool, argument = call
    wanted = session.read(expert)
    if tool == "answer":
        return session.accepts_answer(argument, wanted)
    shown = new_titles(session, argument)
    if session.question.evidence:
        missing = session.missing()
        return any(title in missing for title in shown)
    if wanted is None or wanted[0] != "search":
        return False
    expected = new_titles(session, wanted[1])
    return bool(expected) and expected[0] in shown


def new_titles(session: SearchSession, query: str) -> list[str]:
    """Returns the titles of the pages that a search for the query would show for the first time in this episode."""
    return [page.title for page in session.find(query) if page.title not in session.seen]


def demonstrated_accepts(session: SearchSession, action: str, expert: str) -> bool:
    """Returns whether ``action`` has the effect of the expert's action ``expert``. ``session`` is not changed."""
    made, wanted = session.read(action), session.read(expert)
    if session.done or made is None or wanted is None or made[0] != wanted[0]:
        return False
    if wanted[0] == "answer":
        return normalise(made[1]) == normalise(wanted[1])
    shown = _titles(session, wanted[1])
    return bool(shown) and _titles(session, made[1]) == shown


def _titles(session: SearchSession, query: str) -> list[str]:
    return [page.title for page in session.find(query)]


class SearchEnv(QuestionEnv[SearchSession]):
    """An environment whose questions come from a generated encyclopaedia or from files of public data sets.

    ``conf/env/search.yaml`` explains the arguments.
    """

    name = "search"
    good, clumsy = GoodExpert, ClumsyExpert

    def __init__(
        self,
        level: Level = "full",
        edition: int = 0,
        countries: int | None = None,
        results: int | None = None,
        horizon: int = 8,
        calls: Style | None = None,
        floor: float = F1_FLOOR,
        files: Mapping[str, str] | None = None,
        corpus: str | None = None,
        retriever: str | None = None,
        mistakes: Mistakes | None = None,
        verifier: Verifier = "oracle",
        hops: Sequence[int] | None = None,
    ) -> None:
        if results is not None and results < 1:
            raise ValueError(f"results: must be at least 1, got {results}")
        super().__init__(TOOLS, level, edition, countries, horizon, calls, floor, files, corpus, retriever, hops)
        self.verifier = check_verifier(verifier)
        self.results, self.mistakes = results or (1 if level == "tiny" else 3), mistakes or Mistakes()

    def begin(self, task: Task) -> SearchSession:
        question = self.question(task)
        return SearchSession(task, question, self._retriever, self.results, self._calls, self.horizon, self.floor)

    def accepts(self, session: SearchSession, action: str, expert: str) -> bool:
        accepts = oracle_accepts if self.verifier == "oracle" else demonstrated_accepts
        return accepts(session, action, expert)
