"""``env=browse``: the questions of ``env=search``, on pages that have to be opened and looked through."""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.envs.browse import verifier
from turnwise.envs.browse.experts import ClumsyExpert, GoodExpert, Mistakes
from turnwise.envs.browse.session import TOOLS, BrowseSession
from turnwise.envs.calls import Style
from turnwise.envs.environment import Level
from turnwise.envs.search.questions import QuestionEnv
from turnwise.envs.search.scoring import F1_FLOOR
from turnwise.types import Task


class BrowseEnv(QuestionEnv[BrowseSession]):
    """A search lists titles, and a page shows how it begins. See ``turnwise.envs.environment.Environment``.

    Args:
        level, edition, countries, calls, floor, files, corpus, retriever: as of ``env=search``. A retriever only finds pages:
            what can be opened are the pages of the encyclopaedia, the files or the corpus.
        results: titles that a search lists.
        window: sentences that an opened page shows at once.
        horizon: turns of an episode.
        mistakes: probabilities of the clumsy expert.

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
                raise ValueError(f"{name}: show at least one, got {value}")
        super().__init__(TOOLS, level, edition, countries, horizon, calls, floor, files, corpus, retriever)
        self.results, self.window, self.mistakes = results, window, mistakes or Mistakes()

    def begin(self, task: Task) -> BrowseSession:
        question, pages = self._source.question(task), self._pages
        assert pages is not None  # the constructor refuses files without pages
        found = (self._retriever, self.results, self.window, self._calls, self.horizon, self.floor)
        return BrowseSession(task, question, pages, *found)

    def accepts(self, session: BrowseSession, action: str, expert: str) -> bool:
        return verifier.accepts(session, action, expert)
