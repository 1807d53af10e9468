"""``env=search``: multi-hop questions that are answered by searching pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.envs.calls import Style
from turnwise.envs.environment import Level, Verifier, check_verifier
from turnwise.envs.search import demonstrated
from turnwise.envs.search import verifier as oracle
from turnwise.envs.search.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.search.questions import QuestionEnv
from turnwise.envs.search.scoring import F1_FLOOR
from turnwise.envs.search.session import TOOLS, SearchSession
from turnwise.types import Task


class SearchEnv(QuestionEnv[SearchSession]):
    """Questions over generated pages, or over the files of public data sets. See ``turnwise.envs.environment.Environment``.

    Args:
        level: ``tiny`` (short pages, few words, short commands) or ``full``.
        edition: another number is another encyclopaedia.
        countries: its size; None is the level's own (24, 100).
        hops: relations that its questions follow; None is the level's own (tiny 1 and 2, full 2 and 3).
        results: pages that a search shows; None is the level's own (tiny 1, full 3).
        horizon: turns of an episode.
        calls: how calls are written, ``short`` or ``hermes``; None is short at the tiny level, else hermes.
        floor: F1 from which a partly right answer is paid.
        files: question files by split (train, seen, unseen) instead of the encyclopaedia's questions.
        corpus: a file of pages to search, instead of those that come with the questions.
        retriever: a retrieval server's address instead of BM25 in this process.
        mistakes: probabilities of the clumsy expert.
        verifier: ``oracle`` (``search.verifier``) or ``demonstrated`` (``search.demonstrated``).

    Raises:
        ValueError: a number is out of range, there is no such verifier, or the questions' files bring no pages and
            there is no other source of them.
        InputError: a file cannot be used.
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
            raise ValueError(f"results: a search shows at least one page, got {results}")
        super().__init__(TOOLS, level, edition, countries, horizon, calls, floor, files, corpus, retriever, hops)
        self.verifier = check_verifier(verifier)
        self.results, self.mistakes = results or (1 if level == "tiny" else 3), mistakes or Mistakes()

    def begin(self, task: Task) -> SearchSession:
        question = self._source.question(task)
        return SearchSession(task, question, self._retriever, self.results, self._calls, self.horizon, self.floor)

    def accepts(self, session: SearchSession, action: str, expert: str) -> bool:
        accepts = oracle.accepts if self.verifier == "oracle" else demonstrated.accepts
        return accepts(session, action, expert)
