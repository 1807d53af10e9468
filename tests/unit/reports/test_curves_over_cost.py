"""Success against cost: the common grid and its band by hand, labels apart, and the picture in the page and in Markdown."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from html import unescape
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.reports.cost_to_reach import Cost, Curve
from turnwise.reports.curves_over_cost import COSTS, along, band, reach_figure
from turnwise.reports.line_plots import LETTERS, Band, apart
from turnwise.reports.markdown import write_section

ROOT = Path(__file__).resolve().parents[3]


def cost(spent: float) -> Cost:
    return Cost(10 * spent, 50 * spent, spent)


def told(*points: tuple[float, float]) -> Curve:
    return [(cost(spent), success) for spent, success in points]


def band_of(curves: list[Curve], cost: str) -> Band:
    return band([along(curve, cost) for curve in curves])


def test_two_seeds_on_their_common_grid_by_hand() -> None:
    """The first is profiled for 2 s at 10 % and ends after 8 s; the second has no profile and ends after 6 s."""
    found = band_of([told((2, 10), (4, 30), (8, 50)), told((0, 20), (3, 20), (6, 50))], "cpu")
    assert found.cost == [0, 2, 3, 4, 6]  # 8 s is beyond what the second seed spent
    assert found.mean == [15, 15, 20, 30, 45]  # at 3 s: 20 and 20; at 4 s: 30 and 30; at 6 s: 40 and 50
    assert found.low == [10, 10, 20, 30, 40]
    assert found.high == [20, 20, 20, 30, 50]
    turns = band_of([told((2, 10), (4, 30), (8, 50)), told((0, 20), (3, 20), (6, 50))], "turns")
    assert turns.cost == [0, 20, 30, 40, 60] and turns.mean == found.mean


def test_one_seed_is_its_own_line_from_no_cost_on() -> None:
    found = band_of([told((2, 10), (4, 30))], "cpu")
    assert found.cost == [0, 2, 4] and found.mean == found.low == found.high == [10, 10, 30]


def test_of_a_run_that_plays_no_turns_the_end_is_what_stands_at_none() -> None:
    still = [(Cost(0, 0, 0), 10.0), (Cost(0, 0, 5), 40.0)]
    found = band_of([still], "turns")
    assert (found.cost, found.mean) == ([0], [40])
    assert band_of([still, told((0, 20), (3, 50))], "turns").mean == [30]


seeds = st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 100)), min_size=1, max_size=5)


@given(st.lists(seeds, min_size=1, max_size=4))
def test_the_mean_is_that_of_the_lines_and_the_band_holds_them_between_grid_points_too(steps: list) -> None:
    curves = [told(*zip(np.cumsum([x for x, _ in seed]), (y for _, y in seed), strict=True)) for seed in steps]
    found = band_of(curves, "cpu")
    between = np.linspace(0, found.cost[-1], 37)
    lines = [
        np.interp(between, [0, *(spent.cpu for spent, _ in one)], [one[0][1], *(success for _, success in one)])
        for one in curves
    ]
    mean, low, high = (np.interp(between, found.cost, side) for side in (found.mean, found.low, found.high))
    np.testing.assert_allclose(mean, np.mean(lines, axis=0), atol=1e-6)
    assert (low <= np.min(lines, axis=0) + 1e-6).all() and (high >= np.max(lines, axis=0) - 1e-6).all()


def test_labels_that_would_touch_move_apart_about_their_middle() -> None:
    assert apart([10, 50, 50, 90], 4, 0, 100) == [10, 48, 52, 90]
    assert apart([1, 2, 99], 4, 0, 100) == [0, 4, 99]
    assert apart([99, 100], 4, 0, 100) == [96, 100]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12).map(sorted))
def test_labels_keep_their_order_their_gap_and_to_the_panel(wanted: list[float]) -> None:
    places = apart(wanted, 8, 0, 100)
    assert all(b - a >= 8 - 1e-9 for a, b in pairwise(places))
    assert places[0] >= 0 and places[-1] <= 100 + 1e-9


def test_a_line_a_row_in_words_and_ink_labels_in_the_order_of_the_ends() -> None:
    rows = {"low": [told((0, 10), (4, 20))], "high": [told((0, 10), (4, 60)), told((0, 10), (6, 80))], "none": []}
    figure = reach_figure("T", "k", rows, {"low": "Low & slow", "high": "High"})
    assert (
        figure is not None and "High 58.3 % at 4 s; Low & slow 20.0 % at 4 s." in figure.alt
    )  # (60 + 10 + 70 * 4 / 6) / 2
    drawn = ET.fromstring(figure.svg.replace("xlink:href", "href"))
    texts = [node.text or "" for node in drawn.iter() if node.tag.endswith("text")]
    assert texts.count("High") == texts.count("Low & slow") == len(COSTS) and set(COSTS.values()) <= set(texts)
    assert figure.svg.count("fill-opacity: 0.12") == len(COSTS)  # one row has a band, in each panel
    assert "High: 58.3 % at 4 CPU seconds, seeds 56.7 to 60.0" in figure.svg  # said by the mark at its end
    assert set(re.findall(r'<g data-series="([^"]*)"', figure.svg)) == {"High", "Low &amp; slow"}
    assert not re.search(r"#[0-9a-f]{6}\b", figure.svg + figure.narrow)  # every colour is the page's
    assert reach_figure("T", "k", {"none": []}, {}) is None


def test_a_picture_is_shown_once_and_found_from_the_page(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "results" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("by hand: ![b](../images/b.svg)\n\n<!-- table:t -->\n<!-- /table:t -->\n")
    pictures = {tmp_path / "docs" / "images" / "a.svg": "A", tmp_path / "docs" / "images" / "b.svg": "B"}
    for _ in range(2):
        write_section(page, "text\n", "t", pictures)
        assert page.read_text().count("![A](../images/a.svg)\n\ntext") == 1
        assert page.read_text().count("b.svg") == 1


@pytest.mark.slow
@pytest.mark.skipif(
    not (ROOT / "results" / "turnwise.runs.parquet").exists(), reason="the kept runs are not in this copy"
)
def test_the_kept_compositions_are_drawn_in_the_page_and_shown_in_markdown(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("report_script", ROOT / "scripts" / "report.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page, html, image = tmp_path / "c.md", tmp_path / "c.html", tmp_path / "images" / "c.svg"
    image.parent.mkdir()
    page.write_text("<!-- table:composed -->\n<!-- /table:composed -->\n")
    files = ["--markdown", str(page), "--section", "composed", "--html", str(html), "--figure", str(image)]
    assert script.main(["sweep=turnwise_composed", f"outputs={ROOT / 'results'}", *files]) == 0
    assert "](images/c.svg)" in page.read_text()
    drawn = ET.parse(image).getroot()
    texts = [node.text or "" for node in drawn.iter() if node.tag.endswith("text")]
    assert drawn.attrib["aria-label"] in unescape(html.read_text())
    told = re.findall(
        r"^\| ([^|]+) \| [0-9, ]+ \| [0-9.]+", page.read_text(), re.MULTILINE
    )  # rows of runs, of its first table
    assert len(told) > 1
    for row in told:
        assert row in drawn.attrib["aria-label"]
        assert all(texts.count(line) == len(COSTS) for line in wrap(row, LETTERS))
    assert "images/turnwise_composed.svg" in (ROOT / "docs" / "results" / "composed.md").read_text()
