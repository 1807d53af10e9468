"""``env=search``: multi-hop questions that the policy answers by searching pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.envs.calls import Style
from turnwise.envs.environment import Level, Verifier, check_verifier
from turnwise.envs.search import demonstrated_verifier
from turnwise.envs.search import verifier as oracle
from turnwise.envs.search.answer_scores import F1_FLOOR
from turnwise.envs.search.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.search.question_environment import QuestionEnv
from turnwise.envs.search.session import TOOLS, SearchSession
from turnwise.types import Task


class SearchEnv(QuestionEnv[SearchSession]):
    """An environment whose questions come from a generated encyclopaedia or from files of public data sets.

    It implements ``turnwise.envs.environment.Environment``.

    Args:
        level: ``tiny`` (short pages, few words, short calls) or ``full``.
        edition: seed of the generated encyclopaedia; each seed gives another encyclopaedia.
        countries: number of countries in the encyclopaedia; None means the level's default (tiny 24, full 100).
        hops: numbers of relations that a question follows; each number gives one kind of question. None means the
            level's default (tiny 1 and 2, full 2 and 3).
        results: number of pages that a search shows; None means the level's default (tiny 1, full 3).
        horizon: maximum number of turns of an episode.
        calls: the format of tool calls, ``short`` or ``hermes``. None means short at the tiny level and hermes at the
            full level.
        floor: minimum F1 (overlap of words with the right answer) at which a partly right answer gets a reward.
        files: question files by split (train, seen, unseen), used instead of the encyclopaedia's questions.
        corpus: a file of pages to search, used instead of the pages that come with the questions.
        retriever: address of a retrieval server, used instead of BM25 in this process.
        mistakes: probabilities of the mistakes of the clumsy scripted expert.
        verifier: ``oracle`` accepts searches that show new evidence, and right answers (``search.verifier``).
            ``demonstrated`` accepts actions with the effect of the expert's action (``search.demonstrated_verifier``).

    Raises:
        ValueError: a number is out of range, the verifier is unknown, or there are no pages: the question files contain
            no pages, and neither ``corpus`` nor ``retriever`` is given.
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
            raise ValueError(f"results: must be at least 1, got {results}")
        super().__init__(TOOLS, level, edition, countries, horizon, calls, floor, files, corpus, retriever, hops)
        self.verifier = check_verifier(verifier)
        self.results, self.mistakes = results or (1 if level == "tiny" else 3), mistakes or Mistakes()

    def begin(self, task: Task) -> SearchSession:
        question = self.question(task)
        return SearchSession(task, question, self._retriever, self.results, self._calls, self.horizon, self.floor)

    def accepts(self, session: SearchSession, action: str, expert: str) -> bool:
        accepts = oracle.accepts if self.verifier == "oracle" else demonstrated_verifier.accepts
        return accepts(session, action, expert)
