"""``env=browse``: the questions of ``env=search``, on pages that have to be opened and looked through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.envs.browse import verifier
from turnwise.envs.browse.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.browse.session import TOOLS, BrowseSession
from turnwise.envs.calls import Style, calls_of
from turnwise.envs.demonstration import by_quality, demonstration
from turnwise.envs.environment import Quality, check_horizon, same_text
from turnwise.envs.search.encyclopaedia import Level
from turnwise.envs.search.retrieval import Bm25, Retriever, Served
from turnwise.envs.search.scoring import F1_FLOOR
from turnwise.envs.search.sources import Source
from turnwise.errors import InputError
from turnwise.types import Task, Trajectory


class BrowseEnv:
    """Evidence has to be collected: a search lists titles, a page shows how it begins. See ``envs.environment.Environment``.

    Args:
        level, edition, countries, calls, floor, files, corpus, retriever: as of ``env=search``. A retriever only finds: what
            can be opened are the pages of the encyclopaedia, the files or the corpus.
        results: titles that a search lists.
        window: sentences that an opened page shows at once.
        horizon: turns of an episode.
        mistakes: how often the clumsy expert errs.

    Raises:
        ValueError: a number is out of range, or there is no page to open.
        InputError: a file cannot be used.
    """

    name = "browse"

    def __init__(
        self,
        level: Level = "full",
        edition: int = 0,
        countries: int | None = None,
        results: int = 5,
        window: int = 2,
        horizon: int = 20,
        calls: Style | None = None,
        floor: float = F1_FLOOR,
        files: Mapping[str, str] | None = None,
        corpus: str | None = None,
        retriever: str | None = None,
        mistakes: Mistakes | None = None,
    ) -> None:
        for name, value in (("results", results), ("window", window)):
            if value < 1:
                raise ValueError(f"{name}: show at least one, got {value}")
        if not 0 <= floor <= 1:
            raise ValueError(f"floor: F1 lies in [0, 1], got {floor}")
        self.level, self.horizon = level, check_horizon(horizon)
        self.results, self.window, self.floor, self.mistakes = results, window, floor, mistakes or Mistakes()
        self.calls = calls or ("short" if level == "tiny" else "hermes")
        self._calls = calls_of(self.calls, TOOLS)
        self._source = Source(level, edition, countries, files, corpus)
        self.source, self.retriever, self.corpus = self._source.name, retriever, corpus
        if self._source.pages is None:
            raise ValueError(
                "corpus: these question files bring no pages, and what browse opens is a page; name a file of them"
            )
        self._pages = self._source.pages
        self._retriever: Retriever = Served(retriever) if retriever is not None else Bm25(self._pages)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """``count`` different questions of a split; a longer list starts with the shorter one.

        Raises:
            ValueError: the split is unknown or has fewer questions.
        """
        return self._source.tasks(self.name, split, count, seed)

    def reset(self, task: Task) -> BrowseSession:
        """A fresh episode.

        Raises:
            ValueError: the task belongs to another environment or to other pages, or its data is no question.
        """
        question = self._source.question(task, self.name)
        return BrowseSession(
            task,
            question,
            self._pages,
            self._retriever,
            self.results,
            self.window,
            self._calls,
            self.horizon,
            self.floor,
        )

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """An expert's episode: opening, then action and observation in turn, the last observation included.

        Raises:
            ValueError: the quality is neither good nor clumsy.
            InputError: nobody has said where the evidence stands.
        """
        session = self.reset(task)
        if not session.question.evidence:
            raise InputError(
                f"task {task.id}: its file names no supporting facts, so the experts cannot demonstrate it; give trajectories "
                "as data.file, or choose a method that needs none (method=grpo, method=trace)"
            )
        expert = by_quality(
            quality, lambda: GoodExpert(session, seed), lambda: ClumsyExpert(session, seed, self.mistakes)
        )
        return demonstration(session, lambda: expert.act(session), quality, seed)

    def accepts(self, session: BrowseSession, action: str, expert: str) -> bool:
        """The functional verifier; see ``browse.verifier`` for the rule."""
        return verifier.accepts(session, action, expert)

    def same(self, action: str, expert: str) -> bool:
        """Exact match after whitespace is normalised (PivotRL Eq. 2)."""
        return same_text(action, expert)
