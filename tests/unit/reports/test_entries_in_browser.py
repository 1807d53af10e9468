"""Pages of papers' tables in a real headless Chromium: hover, tap, arrow keys, sorting, a phone, light and dark, no script."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.reports.chromium import Page, contrast
from tests.unit.reports.conftest import write_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
ENTRIES = ("pivotrl_tab1", "pivotrl_text", "selective_tab7", "pivotrl_fig2")
KEPT = ROOT / "results"


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of papers' tables beside the runs that are kept, and one of runs compared."""
    if not KEPT.exists():
        pytest.skip("the kept runs are not in this copy")
    spec = importlib.util.spec_from_file_location("report_script", ROOT / "scripts" / "report.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("entries")
    (far := folder / ("a_folder_of_a_long_name_" * 5)).symlink_to(KEPT)  # that the pages' notes and commands name
    for name in ENTRIES:
        assert script.main([f"sweep={name}", f"outputs={far}", "--html", str(folder / f"{name}.html")]) == 0
    runs = folder / ("runs_of_a_long_name_" * 5)
    for seed in range(2):
        write_run(runs / f"seed{seed}", seed=seed, name="ours")
    assert script.main([str(runs), "--html", str(folder / "runs.html")]) == 0
    return folder


EVERY = pytest.mark.parametrize("name", [*ENTRIES, "runs"])


@EVERY
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_entry_loads_offline_and_reads_in_both_schemes(chromium: Any, entries: Path, name: str, scheme: Any) -> None:
    path = entries / f"{name}.html"
    with Page(chromium, path, color_scheme=scheme) as page:
        assert page.asked == [path.as_uri()] and page.said == []
        assert page.seconds < 5
        colours = "[getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
        for ink, back in page.tab.evaluate(f"[...document.querySelectorAll('.word')].map(e => {colours})"):
            assert contrast(ink, back) > 4.5
        page.tab.locator(".mark >> visible=true").first.focus()
        ink, back = page.tab.evaluate(f"(e => {colours})(document.querySelector('.tip:not([hidden])'))")
        assert contrast(ink, back) > 7


@EVERY
def test_an_entry_fits_a_phone(chromium: Any, entries: Path, name: str) -> None:
    with Page(chromium, entries / f"{name}.html", viewport={"width": 390, "height": 800}, has_touch=True) as page:
        assert page.tab.evaluate("document.scrollingElement.scrollWidth") <= 390
        outside = page.tab.evaluate(
            """[...document.querySelectorAll('figure svg text, .word, h1, h2, figcaption, .legend button')]
            .filter(e => e.checkVisibility() && (e.getBoundingClientRect().right > 390 || e.getBoundingClientRect().left < 0))
            .map(e => e.textContent)"""
        )
        assert outside == []  # no verdict and no part of a figure has to be scrolled to
        small = page.tab.evaluate(
            """[...document.querySelectorAll('.narrower text')].filter(e => e.getBoundingClientRect().height > 0
            && e.getBoundingClientRect().height < 11).map(e => e.textContent)"""
        )
        assert small == []
        hint = page.tab.evaluate("getComputedStyle(document.querySelector('.scroll')).backgroundImage")
        assert hint.count("gradient") == 4  # the shadows of what is further to the side
        if name in ENTRIES:
            assert page.tab.locator(".narrower svg").first.is_visible()
            words = page.tab.locator("td .word").all_inner_texts()
            assert words and set(words) <= {"holds", "fails", "undecided", "untestable", "not run"}


def test_a_mark_says_what_the_table_says_by_mouse_finger_and_keyboard(chromium: Any, entries: Path) -> None:
    with Page(chromium, entries / "pivotrl_text.html") as page:
        head = page.tab.locator(
            "th[scope=row]", has_text=re.compile("^Random turns and strict reward$")
        )  # no claim on it
        table = page.tab.locator("table", has=head).first
        of_seeds, cell = table.locator("tbody tr").first.locator("td").all_inner_texts()[:2]
        count = len(of_seeds.split(","))
        figure = page.tab.locator("figure").first
        tip, wanted = figure.locator(".tip"), f"Random turns and strict reward: {cell}, mean of {count} seeds"
        assert not tip.is_visible()
        mark = figure.locator(f'.scrollfig .mark[aria-label="{wanted}"]')
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        page.tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert tip.is_visible() and tip.inner_text() == wanted
        page.tab.mouse.move(1, 1)
        assert not tip.is_visible()
        first = figure.locator(".scrollfig .mark").first
        first.focus()
        said = [tip.inner_text()]
        for _ in range(count):
            page.tab.keyboard.press("ArrowRight")
            said.append(tip.inner_text())
        assert said[:-1] == [f"seed {seed}: {value}" for seed, value in enumerate(seeds(cell, said[:-1]))]
        assert said[-1] == wanted
        page.tab.keyboard.press("Escape")
        assert not tip.is_visible()
        assert figure.locator('.scrollfig .mark[tabindex="0"]').count() == 1  # one stop a figure
    with Page(chromium, entries / "pivotrl_text.html", viewport={"width": 390, "height": 800}, has_touch=True) as page:
        mark = page.tab.locator(f'.narrower .mark[aria-label="{wanted}"]').first
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        page.tab.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        tip = page.tab.locator("figure").first.locator(".tip")
        assert tip.is_visible() and tip.inner_text() == wanted
        assert tip.bounding_box()["x"] >= 0 and tip.bounding_box()["x"] + tip.bounding_box()["width"] <= 390
        assert page.said == []


def seeds(cell: str, said: list[str]) -> list[str]:
    """The numbers of the marks of seeds, which have the mean that a cell tells."""
    values = [text.partition(": ")[2] for text in said]
    assert abs(sum(map(float, values)) / len(values) - float(cell.partition(" ")[0])) < 0.1
    return values


def test_series_are_hidden_and_shown(chromium: Any, entries: Path) -> None:
    with Page(chromium, entries / "pivotrl_fig2.html") as page:
        figure = page.tab.locator("figure").first
        buttons = figure.locator(".legend button")
        assert buttons.all_inner_texts() == ["PivotRL", "without the turn filter", "SFT on the same data"]
        line = figure.locator('.scrollfig g[data-series="PivotRL"]').first
        assert line.is_visible()
        buttons.first.focus()
        page.tab.keyboard.press("Enter")
        assert buttons.first.get_attribute("aria-pressed") == "false" and not line.is_visible()
        page.tab.locator(".scrollfig .mark:not(.off)").first.focus()
        assert figure.locator(".tip").inner_text().startswith("without the turn filter: ")
        buttons.first.click()
        assert buttons.first.get_attribute("aria-pressed") == "true" and line.is_visible()


def test_tables_are_sorted_by_keyboard_with_numbers_as_numbers(chromium: Any, entries: Path) -> None:
    with Page(chromium, entries / "pivotrl_text.html") as page:
        table = page.tab.locator("table").first
        heads = table.locator("thead th")
        column = [text.strip() for text in heads.all_inner_texts()].index("ours")
        cells = table.locator(f"tbody tr > :nth-child({column + 1})")
        before = cells.all_inner_texts()
        heads.nth(column).locator("button").focus()
        page.tab.keyboard.press("Enter")
        assert heads.nth(column).get_attribute("aria-sort") == "ascending"
        assert cells.all_inner_texts() == sorted(before, key=float) != before
        page.tab.keyboard.press("Enter")
        assert heads.nth(column).get_attribute("aria-sort") == "descending"
        assert cells.all_inner_texts() == sorted(before, key=float, reverse=True)
        page.tab.keyboard.press("Enter")
        assert cells.all_inner_texts() == before and heads.nth(column).get_attribute("aria-sort") == "none"
        assert page.said == []
    texts = [
        "1,024",
        "12.5 +- 3",
        "> 900",
        "-",
        "1 h 02 min",
        "7 min 05 s",
        "+3.1 %",
        "[-0.5, 2]",
        "0, 1, 2",
        "0.12 of 3",
        "x 9",
    ]
    wanted = [1024, 12.5, 900, None, 3720, 425, 3.1, -0.5, None, 0.12, None]
    with Page(chromium, entries / "runs.html") as page:
        assert page.tab.evaluate("texts => texts.map(number)", texts) == wanted


def test_seeds_lead_to_runs_and_without_script_everything_is_there(chromium: Any, entries: Path) -> None:
    with Page(chromium, entries / "runs.html") as page:
        page.tab.locator("td a", has_text="1").first.click()
        page.tab.wait_for_load_state()
        assert page.tab.url.endswith("/seed1/result.json")
    with Page(chromium, entries / "pivotrl_text.html", java_script_enabled=False) as page:
        assert page.tab.locator("figure .mark title").count() > 20  # the browser's own way to say it
        assert page.tab.locator("thead button").count() == page.tab.locator(".tip").count() == 0


@EVERY
def test_a_printed_table_shows_all_of_its_columns(chromium: Any, entries: Path, name: str) -> None:
    with Page(chromium, entries / f"{name}.html", viewport={"width": 680, "height": 900}) as page:
        page.tab.emulate_media(media="print")
        wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        assert page.tab.evaluate(wide) == 0  # a page of paper, less its margins
