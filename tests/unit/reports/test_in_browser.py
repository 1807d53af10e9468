"""The pages in a real headless Chromium: offline, by keyboard, on a phone, in light and dark, with 10,000 rollouts."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.reports.conftest import deep_tree, local_tree, write_run

from turnwise.reports import browser
from turnwise.reports.browser import packed, write_browser
from turnwise.reports.pages import write_pages

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TREES = 1_250  # of eight rollouts


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = os.environ.get("TURNWISE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium here: install one, or name it in TURNWISE_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with 10,000 rollouts, one deep tree that was cut, and text that would be markup."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "seed0")
    for path in (folder / "rollouts").glob("*.jsonl"):
        path.unlink()
    rng = np.random.default_rng(0)
    deep = deep_tree() | {"stopped": True, "looks": [{"step": 3, "values": {"d": 0.125}, "stop": True}]}
    deep["turns"][0]["text"] = "<img src=x onerror=alert(1)>"
    trees = [local_tree(rng, i // 25, i) for i in range(TREES - 1)] + [deep]
    (folder / "rollouts" / "train.jsonl").write_text("".join(json.dumps(tree) + "\n" for tree in trees))
    write_pages(folder)
    return folder


class Page:
    """A page that was opened offline, with everything that it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, **settings: Any) -> None:
        self.context = browser.new_context(offline=True, **settings)
        self.tab = self.context.new_page()
        self.asked: list[str] = []
        self.said: list[str] = []
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        began = time.perf_counter()
        self.tab.goto(path.as_uri())
        if path.name == "rollouts.html":
            self.tab.wait_for_selector("body[data-ready]", timeout=60_000)
        self.seconds = time.perf_counter() - began

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def until(self, condition: str, seconds: float = 20) -> None:
        """Wait for it. Playwright's own waiting evaluates text inside the page, which the page's policy forbids."""
        end = time.monotonic() + seconds
        while not self.tab.evaluate(condition):
            assert time.monotonic() < end, condition
            self.tab.wait_for_timeout(20)

    def count(self) -> str:
        return str(self.tab.inner_text("#count"))


PAGES = pytest.mark.parametrize("name", ["report.html", "rollouts.html"])


@PAGES
def test_a_page_loads_offline_asks_for_nothing_and_complains_of_nothing(chromium: Any, folder: Path, name: str) -> None:
    with Page(chromium, folder / name) as page:
        assert page.asked == [(folder / name).as_uri()]
        assert page.said == []
        assert page.tab.locator("h1").inner_text().endswith("pivotrl on household, seed 0")


@PAGES
def test_a_page_fits_a_phone(chromium: Any, folder: Path, name: str) -> None:
    with Page(chromium, folder / name, viewport={"width": 360, "height": 740}, has_touch=True) as page:
        assert page.tab.evaluate("document.scrollingElement.scrollWidth") <= 360
        small = page.tab.evaluate(
            """[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && [...e.childNodes].some(
            n => n.nodeType === 3 && n.data.trim()) && !e.closest('svg, figure') && parseFloat(getComputedStyle(e).fontSize) < 12)
            .map(e => e.outerHTML.slice(0, 80))"""
        )
        assert small == []


@PAGES
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(chromium: Any, folder: Path, name: str, scheme: Any) -> None:
    with Page(chromium, folder / name, color_scheme=scheme) as page:
        body = "getComputedStyle(document.body)"
        back, ink = (page.tab.evaluate(f"{body}.{key}") for key in ("backgroundColor", "color"))
        muted = page.tab.evaluate("getComputedStyle(document.querySelector('.muted')).color")
        assert (luminance(back) > 0.5) == (scheme == "light")
        assert contrast(back, ink) > 7 and contrast(back, muted) > 4.5  # WCAG 2.2, AAA and AA


def luminance(color: str) -> float:
    """Relative, of ``rgb(r, g, b)``."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_the_report_opens_by_keyboard_and_leads_to_the_browser(chromium: Any, folder: Path) -> None:
    with Page(chromium, folder / "report.html") as page:
        page.tab.keyboard.press("Tab")
        assert page.tab.evaluate("document.activeElement.className") == "skip"
        page.tab.locator("#rollouts > details > summary").first.focus()
        page.tab.keyboard.press("Enter")
        assert page.tab.locator("#rollouts > details").first.get_attribute("open") is not None
        page.tab.click("text=Browse all recorded trees")
        page.tab.wait_for_selector("body[data-ready]")
        assert page.count() == "1,250 of 1,250 trees, 9,994 rollouts"


def test_ten_thousand_rollouts_are_fast(chromium: Any, folder: Path) -> None:
    assert (folder / "rollouts.html").stat().st_size < 3_000_000
    with Page(chromium, folder / "rollouts.html") as page:
        assert page.seconds < 10  # under 1 s on an idle machine
        assert page.tab.locator(".row").count() < 60  # what is out of sight is not in the document
        milliseconds = page.tab.evaluate(
            """() => { const begun = performance.now(); const words = document.getElementById('words');
            words.value = 'heat'; words.dispatchEvent(new Event('input')); return performance.now() - begun; }"""
        )
        assert milliseconds < 1000
        page.tab.evaluate("document.getElementById('list').scrollTop = 1e6")
        page.until("document.querySelector('.row:last-child').getAttribute('aria-posinset') > 100")
        assert page.tab.locator(".row").count() < 60


def test_the_browser_by_keyboard(chromium: Any, folder: Path) -> None:
    with Page(chromium, folder / "rollouts.html") as page:
        page.tab.focus("#list")
        page.tab.keyboard.press("End")
        assert page.tab.url.endswith(f"#tree={TREES - 1}")
        assert page.tab.inner_text("#tree h2") == "train/9"
        assert page.tab.locator('.row[aria-selected="true"]').is_visible()
        page.tab.focus("#drawing svg")
        assert page.tab.inner_text("#path h3").startswith("Rollout 1 of 2: total 1.00")
        assert page.tab.locator("#path li").count() == 6
        page.tab.keyboard.press("ArrowDown")
        assert page.tab.inner_text("#path h3").startswith("Rollout 2 of 2: total 0.00")
        assert page.tab.locator("#path li").count() == 2
        page.tab.keyboard.press("/")
        page.tab.keyboard.type("onerror")
        assert page.count() == "1 of 1,250 trees, 2 rollouts"


def test_filters_order_and_addresses(chromium: Any, folder: Path) -> None:
    with Page(chromium, folder / "rollouts.html") as page:
        page.tab.select_option("#kind", "cut")
        assert page.count() == "1 of 1,250 trees, 2 rollouts"
        page.tab.locator(".row").first.click()
        assert "0.125" in page.tab.inner_text("#tree table") and "cut by the gate" in page.tab.inner_text("#tree")
        page.tab.select_option("#kind", "alike")
        trees, _ = packed(folder)
        alike = [tree for tree in trees if len(set(tree["rewards"]["total"])) == 1]
        assert page.count().startswith(f"{len(alike)} of")
        page.tab.select_option("#kind", "all")
        page.tab.fill("#first", "3")
        page.tab.fill("#last", "3")
        assert page.count().startswith("26 of")  # 25 local trees and the deep one
        page.tab.select_option("#order", "samples")
        assert "8 rollouts" in page.tab.locator(".row").first.inner_text()
        page.tab.fill("#words", "no such words")
        assert page.tab.locator("#none").is_visible()
        address = page.tab.url
        page.tab.goto("about:blank")
        page.tab.goto(address)
        page.tab.wait_for_selector("body[data-ready]")
        assert page.tab.inner_text("#tree h2") == "train/9"


def test_what_a_model_wrote_is_text(chromium: Any, folder: Path) -> None:
    with Page(chromium, folder / "rollouts.html") as page:
        page.tab.focus("#list")
        page.tab.keyboard.press("End")
        assert page.tab.locator("#path .action").first.inner_text() == "<img src=x onerror=alert(1)>"
        assert page.tab.locator("img").count() == 0 and page.said == []


def test_a_page_holds_trees_evenly_spaced_where_they_are_too_many(tmp_path: Path, monkeypatch: Any) -> None:
    run = write_run(tmp_path / "seed0")
    everything, total = packed(run)
    size = sum(path.stat().st_size for path in (run / "rollouts").iterdir())
    monkeypatch.setattr(browser, "CHARACTERS", size // 4)
    found, again = packed(run)
    assert again == total == 160 and len(found) in (39, 40)
    assert found[0] == everything[0] and found[-1] == everything[-1]


def test_torn_lines_and_runs_without_trees(tmp_path: Path) -> None:
    run = write_run(tmp_path / "seed0")
    assert write_browser(run) is not None
    trees, total = packed(run)
    with (run / "rollouts" / "0039.jsonl").open("a") as stream:
        stream.write('{"state": {"task": "t"}, "turns": [{"text": NaN}]}\n[1]\n')
        stream.write('{"state": {"messages": [1]}, "turns": []}\n{"state": {}, "turns": [], "looks": [{}]}\n{"torn')
    again, more = packed(run)
    assert more == total + 5 and [tree["task"] for tree in again] == [tree["task"] for tree in trees] + ["t"]
    shutil.rmtree(run / "rollouts")
    assert write_browser(run) is None


ENTRIES = ("pivotrl_tab1", "trace_tab1", "selective_tab7", "pivotrl_fig2")
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
    for name in ENTRIES:
        assert script.main([f"sweep={name}", f"outputs={KEPT}", "--html", str(folder / f"{name}.html")]) == 0
    for seed in range(2):
        write_run(folder / "runs" / f"seed{seed}", seed=seed, name="ours")
    assert script.main([str(folder / "runs"), "--html", str(folder / "runs.html")]) == 0
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
            assert words and set(words) <= {"holds", "fails", "undecided", "not run"}


def test_a_mark_says_what_the_table_says_by_mouse_finger_and_keyboard(chromium: Any, entries: Path) -> None:
    with Page(chromium, entries / "trace_tab1.html") as page:
        table = page.tab.locator("table", has_text="uniform roots, uniform prefixes").first
        cell = table.locator("tbody tr").first.locator("td").nth(1).inner_text()
        figure = page.tab.locator("figure").first
        tip, wanted = figure.locator(".tip"), f"uniform roots, uniform prefixes: {cell}, mean of 3 seeds"
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
        for _ in range(3):
            page.tab.keyboard.press("ArrowRight")
            said.append(tip.inner_text())
        assert (
            said[:3] == [f"seed {seed}: {value}" for seed, value in enumerate(seeds(cell, said))] and said[3] == wanted
        )
        page.tab.keyboard.press("Escape")
        assert not tip.is_visible()
        assert figure.locator('.scrollfig .mark[tabindex="0"]').count() == 1  # one stop a figure
    with Page(chromium, entries / "trace_tab1.html", viewport={"width": 390, "height": 800}, has_touch=True) as page:
        mark = page.tab.locator(f'.narrower .mark[aria-label="{wanted}"]').first
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        page.tab.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        tip = page.tab.locator("figure").first.locator(".tip")
        assert tip.is_visible() and tip.inner_text() == wanted
        assert tip.bounding_box()["x"] >= 0 and tip.bounding_box()["x"] + tip.bounding_box()["width"] <= 390
        assert page.said == []


def seeds(cell: str, said: list[str]) -> list[str]:
    """The numbers of three marks, which have the mean that a cell tells."""
    values = [text.partition(": ")[2] for text in said[:3]]
    assert abs(sum(map(float, values)) / 3 - float(cell.partition(" ")[0])) < 0.1
    return values


def test_series_are_hidden_and_shown(chromium: Any, entries: Path) -> None:
    with Page(chromium, entries / "pivotrl_fig2.html") as page:
        figure = page.tab.locator("figure").first
        buttons = figure.locator(".legend button")
        assert buttons.all_inner_texts() == ["D_adv", "D_cand", "Same-data SFT"]
        line = figure.locator('.scrollfig g[data-series="D_adv"]').first
        assert line.is_visible()
        buttons.first.focus()
        page.tab.keyboard.press("Enter")
        assert buttons.first.get_attribute("aria-pressed") == "false" and not line.is_visible()
        page.tab.locator(".scrollfig .mark:not(.off)").first.focus()
        assert figure.locator(".tip").inner_text().startswith("D_cand: ")
        buttons.first.click()
        assert buttons.first.get_attribute("aria-pressed") == "true" and line.is_visible()


def test_tables_are_sorted_by_keyboard_with_numbers_as_numbers(chromium: Any, entries: Path) -> None:
    with Page(chromium, entries / "trace_tab1.html") as page:
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
        assert page.tab.url.endswith("runs/seed1/result.json")
    with Page(chromium, entries / "trace_tab1.html", java_script_enabled=False) as page:
        assert page.tab.locator("figure .mark title").count() > 20  # the browser's own way to say it
        assert page.tab.locator("thead button").count() == page.tab.locator(".tip").count() == 0


def test_the_report_of_a_run_answers_too(chromium: Any, folder: Path) -> None:
    with Page(chromium, folder / "report.html") as page:
        figure = page.tab.locator("figure", has_text="Held-out success during training").first
        figure.locator(".mark").first.focus()
        assert figure.locator(".tip").inner_text() == "seen: 35.0 % at iteration 0"
        heads = page.tab.locator("table", has_text="suite").first.locator("thead th")
        heads.nth(3).locator("button").click()
        changes = (
            page.tab.locator("table", has_text="suite").first.locator("tbody tr > :nth-child(4)").all_inner_texts()
        )
        assert changes == sorted(changes, key=float) and len(changes) == 8  # the mean stays below
