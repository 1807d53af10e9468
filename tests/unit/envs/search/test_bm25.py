"""The search by words that needs no server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_equal_scores_come_in_the_order_of_the_pages() -> None:
    find = Bm25(Pages(Page(f"Twin {letter}", ("same words",)) for letter in "gfedcbaxyz"))
    assert [page.title[-1] for page in find("twin", 4)] == list("gfed")


def test_bm25s_does_not_start_jax_on_a_gpu(tmp_path: Path) -> None:
    """JAX takes most of a GPU's memory when it starts, and bm25s starts it where it is installed. This one tells where."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    (tmp_path / "jax" / "lax.py").write_text(
        "import os\n\n\ndef top_k(x, k):\n    print('platforms', os.environ.get('JAX_PLATFORMS'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", "from turnwise_worlds.search.retrieval import _bm25s; _bm25s()"],
        capture_output=True, text=True, check=True, env={**environment, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.stdout.split() == ["platforms", "cpu"]


def test_bm25s_is_loaded_when_pages_are_searched() -> None:
    """It loads a compiler: a second of CPU time, which a configuration that is refused need not wait for."""
    program = "import sys; import turnwise_worlds.search.environment; assert 'bm25s' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
