"""The pages in a real headless Chromium: offline, by keyboard, on a phone, with 10,000 rollouts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.reports.chromium import Page, launched
from tests.unit.reports.conftest import deep_tree, local_tree, write_run

from turnwise.runs import page as run_page
from turnwise.runs.page import page_trees, write_pages

pytestmark = pytest.mark.slow
TREES = 1_250  # of eight rollouts


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The machine's own Chromium; the tests are skipped where it has none."""
    yield from launched()


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


PAGES = pytest.mark.parametrize("name", ["report.html", "rollouts.html"])


@PAGES
def test_a_page_loads_offline_asks_for_nothing_and_complains_of_nothing(chromium: Any, folder: Path, name: str) -> None:
    with Page(chromium, folder / name) as page:
        assert page.asked == [(folder / name).as_uri()]
        assert page.said == []
        assert page.tab.locator("h1").inner_text().endswith("pivotrl on household, seed 0")


def test_the_report_opens_by_keyboard_and_leads_to_the_browser(chromium: Any, folder: Path) -> None:
    with Page(chromium, folder / "report.html") as page:
        page.tab.keyboard.press("Tab")
        assert page.tab.evaluate("document.activeElement.className") == "skip"
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
        trees, _ = page_trees(folder)
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
    everything, total = page_trees(run)
    size = sum(path.stat().st_size for path in (run / "rollouts").iterdir())
    monkeypatch.setattr(run_page, "CHARACTERS", size // 4)
    found, again = page_trees(run)
    assert again == total == 160 and len(found) in (39, 40)
    assert found[0] == everything[0] and found[-1] == everything[-1]
