"""``env=browse``: the questions of ``env=search``, for which the policy must open and read pages."""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.envs.browse import verifier
from turnwise.envs.browse.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.browse.session import TOOLS, BrowseSession
from turnwise.envs.calls import Style
from turnwise.envs.environment import Level
from turnwise.envs.search.answer_scores import F1_FLOOR
from turnwise.envs.search.question_environment import QuestionEnv
from turnwise.types import Task


class BrowseEnv(QuestionEnv[BrowseSession]):
    """An environment in which the policy searches, opens and reads pages to answer questions.

    See ``turnwise.envs.environment.Environment``. A search lists only titles of pages, and an opened page shows only
    its beginning.

    Args:
        level, edition, countries, calls, floor, files, corpus: see ``env=search``.
        retriever: see ``env=search``. The retriever only finds pages. The pages that can be opened come from the
            encyclopaedia, the files or the corpus.
        results: maximum number of titles that a search lists.
        window: number of sentences that an opened page shows at once.
        horizon: maximum number of turns of an episode.
        mistakes: probabilities of the clumsy expert's mistakes.

    Raises:
        ValueError: a number is out of range, or there is no page to open.
        InputError: a file cannot be used.
    """

    name = "browse"
    opens = True
    evidence = "facts"
    good, clumsy = GoodExpert, ClumsyExpert

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
                raise ValueError(f"{name}: must be at least 1, got {value}")
        super().__init__(TOOLS, level, edition, countries, horizon, calls, floor, files, corpus, retriever)
        self.results, self.window, self.mistakes = results, window, mistakes or Mistakes()

    def begin(self, task: Task) -> BrowseSession:
        question, pages = self.question(task), self._pages
        assert pages is not None  # always true, because the constructor refuses files without pages
        found = (self._retriever, self.results, self.window, self._calls, self.horizon, self.floor)
        return BrowseSession(task, question, pages, *found)

    def accepts(self, session: BrowseSession, action: str, expert: str) -> bool:
        return verifier.accepts(session, action, expert)
