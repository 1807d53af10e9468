"""The search by words that needs no server."""

from __future__ import annotations

import subprocess
import sys

from turnwise_worlds.search.encyclopaedia import Page, Pages
from turnwise_worlds.search.retrieval import Bm25

PAGES = [
    Page("Comet", ("A comet is ice.",)),
    Page("Stark Motors", ("It made the Comet.",)),
    Page("Lenbury", ("A town.",)),
]


def test_bm25_puts_the_page_of_that_title_first_and_shows_nothing_where_no_word_fits() -> None:
    find = Bm25(Pages(PAGES))
    assert [page.title for page in find("comet", 3)] == ["Comet", "Stark Motors"]
    assert [page.title for page in find("COMET stark", 1)] == ["Stark Motors"]
    assert find("zebra", 3) == () == find("the of", 3) == find("\x00 \ud800", 3)


def test_bm25s_is_loaded_when_pages_are_searched() -> None:
    """It loads a compiler: a second of CPU time, which a configuration that is refused need not wait for."""
    program = "import sys; import turnwise_worlds.search.environment; assert 'bm25s' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
