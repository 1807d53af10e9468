"""Provides the questions and pages of ``env=search`` and ``env=browse``, from the encyclopaedia or the user's files."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.envs.environment import Level, check_split
from turnwise.envs.search.encyclopaedia import Encyclopaedia
from turnwise.envs.search.pages_and_questions import Page, Pages, Question
from turnwise.envs.search.question_files import read_pages, read_questions
from turnwise.errors import InputError
from turnwise.types import Task


class Source:
    """Holds the questions of each split, and the pages in which the policy searches for the answers.

    Args:
        level, edition, countries, hops: arguments of :class:`~turnwise.envs.search.encyclopaedia.Encyclopaedia`.
        files: split -> question file, used instead of the encyclopaedia's questions. A split without a file has no
            tasks.
        corpus: a file of pages, used instead of the pages that come with the questions.

    Raises:
        ValueError: ``files`` names an unknown split.
        InputError: a file cannot be used, a question file has no question, or the corpus file has no page.
    """

    def __init__(
        self,
        level: Level,
        edition: int,
        countries: int | None,
        files: Mapping[str, str] | None,
        corpus: str | None,
        hops: Sequence[int] | None = None,
    ) -> None:
        for split in files or ():
            check_split(split, f"files.{split}")
        self._made = None if files else Encyclopaedia(level, edition, countries, hops)
        self._read: dict[str, list[Question]] = {}
        self._lists: dict[tuple[str, int], list[Question]] = {}
        pages: list[Page] = list(self._made.pages) if self._made else []
        for split, path in (files or {}).items():
            self._read[split], own = read_questions(path, f"files.{split}")
            pages += own if corpus is None else ()
        if corpus is not None:
            pages = read_pages(corpus, "corpus")
        self.pages = Pages(pages) if pages else None
        made = f"{level} {edition} {countries}" + (f" {list(hops)}" if hops is not None else "")
        self.name = f"files {_digest(files)}" if files else made

    def tasks(self, env: str, split: str, count: int, seed: int) -> Sequence[Task]:
        """Returns ``count`` different tasks of a split. A larger ``count`` only adds tasks at the end of the list.

        Raises:
            InputError: the split has fewer than ``count`` questions.
        """
        questions = self._lists.get((split, seed))
        if questions is None:
            questions = self._lists[split, seed] = self._ordered(split, seed)
        if count > len(questions):
            remedy = (
                f"set env.files.{split} to a file with more questions"
                if self._made is None
                else "raise env.countries, or set env.level=full"
            )
            raise InputError(
                f"env={env}: the split {split} has {len(questions)} questions, but {count} are needed; {remedy}, or "
                "lower data.trajectories, states.count or eval.tasks"
            )
        source = {"source": self.name}
        return [Task(env, f"{split}/{q.key}", split, q.data() | source, q.kind) for q in questions[:count]]

    def question(self, task: Task) -> Question:
        """Returns the question of a task.

        Raises:
            ValueError: the task was made with other settings, so its pages are not the pages of this source.
        """
        made = task.data.get("source")
        if made is not None and made != self.name:
            raise ValueError(
                f"task {task.id}: the task was made with the pages {made!r}, but this run has the pages {self.name!r} "
                "(level, edition, countries and hops, or a digest of files); use the settings of the task"
            )
        return Question.of(task.data)

    def _ordered(self, split: str, seed: int) -> list[Question]:
        if self._made is not None:
            return self._made.questions(split, seed)
        questions = list(self._read.get(split, ()))
        random.Random(f"questions {split} {seed}").shuffle(questions)
        return questions


def _digest(files: Mapping[str, Any] | None) -> str:
    return hashlib.sha256(repr(sorted((files or {}).items())).encode()).hexdigest()[:12]
