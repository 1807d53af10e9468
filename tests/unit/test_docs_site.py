"""The site that `make docs` builds: strict, complete, and searchable in a browser that has no network and no server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.reports.chromium import Page, launched

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    yield from launched()


def built(source: Path, to: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["--config-file", "docs/site/mkdocs.yml", "--site-dir", str(to)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs make docs")
    to = tmp_path_factory.mktemp("site")
    done = built(ROOT, to)
    assert done.returncode == 0, done.stderr
    return to


def test_every_page_and_figure_is_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        path = page.relative_to(ROOT).with_suffix(".html")
        assert (site / path.with_name(path.name.replace("README", "index"))).is_file(), page
    shown = (site / "docs" / "gallery.html").read_text()
    assert all(f"images/{picture.name}" in shown for picture in (ROOT / "docs" / "images").iterdir())
    assert 'id="turnwise.types.RolloutTree.leaves"' in (site / "docs" / "reference" / "types.html").read_text()


def test_search_needs_neither_server_nor_network(site: Path, chromium: Any) -> None:
    with Page(chromium, site / "index.html", viewport={"width": 1280, "height": 800}) as page:
        page.tab.click("input.md-search__input")
        page.tab.keyboard.type("divergence gate", delay=5)
        page.until("document.querySelectorAll('.md-search-result__item').length > 0", 60)
        assert all(url.startswith(("file:", "data:", "blob:")) for url in page.asked) and page.said == []


def test_a_broken_link_and_a_broken_anchor_fail_the_build(site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name in ("docs", "src", "conf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    with (copy / "docs" / "data.md").open("a") as stream:
        stream.write("\n[a](nowhere.md) [b](models.md#no-such-heading)\n")
    done = built(copy, tmp_path / "site")
    assert done.returncode != 0 and "nowhere.md" in done.stderr and "no-such-heading" in done.stderr
