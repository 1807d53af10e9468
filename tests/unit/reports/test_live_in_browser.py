"""Pages of runs under way, of comparisons and of tables on a phone, in a real headless Chromium."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.reports.chromium import Page

from turnwise.reports.comparison_page import comparison_page
from turnwise.reports.find_runs import collect
from turnwise.reports.html_pages import write_page
from turnwise.reports.run_report import write_report
from turnwise.reports.tables import run_table
from turnwise.runs.status_file import Status

pytestmark = pytest.mark.slow
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest.fixture
def running(run_folder: Path, tmp_path: Path) -> tuple[Path, Status]:
    folder = tmp_path / "pivotrl" / "seed0"
    shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns("result.json", "*.html", "profile.parquet"))
    now = time.time()
    return folder, Status(
        phase="train", done=12, total=60, left=480, began=now - 90, written=now, command="python x.py"
    )


def test_a_page_of_a_run_under_way_loads_itself_again(chromium: Any, running: tuple[Path, Status]) -> None:
    folder, status = running
    with Page(chromium, write_report(folder, status)) as page:
        standing = page.tab.inner_text("#standing")
        assert "12 of 60" in standing and "about 8 min" in standing and "python x.py" in standing
        write_report(folder, replace(status, done=13))
        page.tab.locator("#standing", has_text="13 of 60").wait_for(timeout=40_000)
        page.tab.locator("#rollouts summary").first.click()  # somebody reads
        write_report(folder, replace(status, done=14))
        page.tab.wait_for_timeout(11_000)
        assert "13 of 60" in page.tab.inner_text("#standing")
        assert page.said == []


def test_a_page_without_news_says_so(chromium: Any, running: tuple[Path, Status]) -> None:
    folder, status = running
    with Page(chromium, write_report(folder, replace(status, written=time.time() - 3_600))) as page:
        before = page.tab.inner_text("#news")
        page.tab.locator("#rollouts summary").first.click()
        page.until(f"document.getElementById('news').innerText !== {before!r}", 40)
        assert "60 min" in page.tab.inner_text("#news")


def test_an_interrupted_run_stays_as_it_is(chromium: Any, running: tuple[Path, Status]) -> None:
    folder, status = running
    with Page(chromium, write_report(folder, replace(status, state="interrupted", left=None))) as page:
        assert "python x.py" in page.tab.inner_text("#standing")
        assert page.tab.locator("meta[http-equiv=refresh]").count() == 0 and page.said == []


def numbers_outside(page: Page) -> list[str]:
    """Cells of tables that are not wholly inside the phone's width."""
    return list(
        page.tab.evaluate(
            """[...document.querySelectorAll('table td, table tbody th')].filter(cell => cell.checkVisibility())
            .filter(cell => { const box = cell.getBoundingClientRect(); return box.left < 0 || box.right > innerWidth; })
            .map(cell => cell.innerText)"""
        )
    )


def test_a_phone_shows_every_number_of_the_results_with_its_name(chromium: Any, run_folder: Path) -> None:
    with Page(chromium, write_report(run_folder), **PHONE) as page:
        assert numbers_outside(page) == []
        rows = page.tab.locator("#results tbody tr")
        row = rows.first
        for text in ("33.9 %", "[+", "192"):
            assert text in row.inner_text()
        label = page.tab.evaluate(
            "getComputedStyle(document.querySelector('#results td[data-label=after]'), '::before').content"
        )
        assert "after" in label


def test_a_comparison_overlays_curves_and_fits_a_phone(chromium: Any, make: Any, tmp_path: Path) -> None:
    for name in ("first", "second"):
        for seed in range(2):
            make.write_run(tmp_path / name / f"seed{seed}", seed=seed, name=name, states=20)
    collection = collect([tmp_path])
    tables = [run_table(env, scale, rows, {}) for (env, scale), rows in collection.sections.items()]
    path = tmp_path / "comparison.html"
    write_page(path, comparison_page(collection, tables, [], (), path))
    with Page(chromium, path) as page:
        figure = page.tab.locator("figure").last
        assert figure.locator(".legend button").all_inner_texts() == ["first", "second"]
        assert figure.locator('.scrollfig g[data-series="first"]').count() >= 4
        assert page.said == []
    with Page(chromium, path, **PHONE) as page:
        assert numbers_outside(page) == []
        assert page.tab.evaluate("document.scrollingElement.scrollWidth") <= 390
        assert page.tab.locator("figure").last.locator(".narrower").is_visible()
