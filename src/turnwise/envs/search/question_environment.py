"""The base classes that ``env=search`` and ``env=browse`` share, in which the policy answers a question about pages."""

from __future__ import annotations

import hashlib
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from turnwise.data.tool_schema import make_tool
from turnwise.envs.calls import Calls, Hermes, Style
from turnwise.envs.environment import Level, Step, check_split
from turnwise.envs.search.answer_scores import score
from turnwise.envs.search.encyclopaedia import Encyclopaedia
from turnwise.envs.search.pages_and_questions import Page, Pages, Question
from turnwise.envs.search.question_files import read_pages, read_questions
from turnwise.envs.search.retrievers import Bm25, Retriever, Served
from turnwise.envs.tool_environment import ToolEnv
from turnwise.envs.tool_session import TextSession
from turnwise.errors import InputError
from turnwise.types import Task

ANSWER = make_tool(
    "answer",
    "Give the final answer: a name, a number, a date, yes or no. This ends the episode.",
    text=("string", "the answer"),
)
ANSWERED = "The answer was noted."
NOTHING = "Nothing found."
_ASKED = "Answer the question with facts that you find."


class QuestionSession(TextSession):
    """An episode in which the policy answers a question. The answer ends the episode.

    Args:
        question: the question of the task.
        retriever: finds pages for a query.
        results: number of pages that a search shows.
        floor: minimum F1 (overlap of words with the right answer) at which a partly right answer gets a reward.
    """

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
    """Base class of environments with questions. ``turnwise.envs.search.SearchEnv`` describes the arguments.

    Questions and pages come from the generated encyclopaedia, or from the user's files. A split without a question file
    has no tasks then.

    Attributes:
        opens: whether the policy can open pages. If so, the environment needs the pages themselves, not only a
            retriever.
        evidence: the word by which error messages name the evidence that the scripted experts need, such as ``pages``.

    Raises:
        ValueError: a number is out of range, ``files`` names an unknown split, or there are no pages.
        InputError: a file cannot be used, a question file has no question, or the corpus file has no page.
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
        """Returns the question of a task.

        Raises:
            ValueError: the task was made with other settings, so its pages are not the pages of this environment.
        """
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
