"""``env=search``: multi-hop questions that are answered by searching pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.envs.calls import Style, calls_of
from turnwise.envs.demonstration import by_quality, demonstration
from turnwise.envs.environment import Quality, check_horizon, same_text
from turnwise.envs.search import verifier
from turnwise.envs.search.encyclopaedia import Level
from turnwise.envs.search.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.search.retrieval import Bm25, Retriever, Served
from turnwise.envs.search.scoring import F1_FLOOR
from turnwise.envs.search.session import TOOLS, SearchSession
from turnwise.envs.search.sources import Source
from turnwise.errors import InputError
from turnwise.types import Task, Trajectory


class SearchEnv:
    """Questions over generated pages, or over the files of public data sets. See ``turnwise.envs.environment.Environment``.

    Args:
        level: ``tiny`` (short pages, few words, short commands) or ``full``.
        edition: another number is another encyclopaedia.
        countries: its size; None takes the level's own (24, 100).
        results: pages that a search shows; None takes the level's own (tiny 1, full 3).
        horizon: turns of an episode.
        calls: how calls are written, ``short`` or ``hermes``; None takes short at the tiny level, else hermes.
        floor: F1 from which a partly right answer is paid.
        files: question files by split (train, seen, unseen) instead of the encyclopaedia's questions.
        corpus: a file of pages to search, instead of those that come with the questions.
        retriever: a retrieval server's address instead of BM25 in this process.
        mistakes: how often the clumsy expert errs.

    Raises:
        ValueError: a number is out of range, or the questions' files bring no pages and there is no other source of them.
        InputError: a file cannot be used.
    """

    name = "search"

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
    ) -> None:
        if results is not None and results < 1:
            raise ValueError(f"results: a search shows at least one page, got {results}")
        if not 0 <= floor <= 1:
            raise ValueError(f"floor: F1 lies in [0, 1], got {floor}")
        self.level, self.horizon = level, check_horizon(horizon)
        self.results = results or (1 if level == "tiny" else 3)
        self.floor, self.mistakes = floor, mistakes or Mistakes()
        self.calls = calls or ("short" if level == "tiny" else "hermes")
        self._calls = calls_of(self.calls, TOOLS)
        self._source = Source(level, edition, countries, files, corpus)
        self.source, self.retriever, self.corpus = self._source.name, retriever, corpus
        self._retriever: Retriever
        if retriever is not None:
            self._retriever = Served(retriever)
        elif self._source.pages is None:
            raise ValueError(
                "corpus: these question files bring no pages; name a file of pages, or a retriever's address"
            )
        else:
            self._retriever = Bm25(self._source.pages)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """``count`` different questions of a split; a longer list starts with the shorter one.

        Raises:
            ValueError: the split is unknown or has fewer questions.
        """
        return self._source.tasks(self.name, split, count, seed)

    def reset(self, task: Task) -> SearchSession:
        """A fresh episode.

        Raises:
            ValueError: the task belongs to another environment or to other pages, or its data is no question.
        """
        question = self._source.question(task, self.name)
        return SearchSession(task, question, self._retriever, self.results, self._calls, self.horizon, self.floor)

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """An expert's episode: opening, then action and observation in turn, the last observation included.

        Raises:
            ValueError: the quality is neither good nor clumsy.
            InputError: nobody has said which pages hold the answer, so there is nothing to look up.
        """
        session = self.reset(task)
        if not session.question.evidence:
            raise InputError(
                f"task {task.id}: its file names no supporting pages, so the experts cannot demonstrate it; give trajectories "
                "as data.file, or choose a method that needs none (method=grpo, method=trace)"
            )
        expert = by_quality(
            quality, lambda: GoodExpert(session, seed), lambda: ClumsyExpert(session, seed, self.mistakes)
        )
        return demonstration(session, lambda: expert.act(session), quality, seed)

    def accepts(self, session: SearchSession, action: str, expert: str) -> bool:
        """The functional verifier; see ``search.verifier`` for the rule."""
        return verifier.accepts(session, action, expert)

    def same(self, action: str, expert: str) -> bool:
        """Exact match after whitespace is normalised (PivotRL Eq. 2)."""
        return same_text(action, expert)
