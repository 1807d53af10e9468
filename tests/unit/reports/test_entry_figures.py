"""The pictures of a paper's table: its numbers, and held-out success by update."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from turnwise.runs.result_file import read_result
from turnwise_study.entries import Entry, read_entry
from turnwise_study.entry_tables import entry_figures, entry_tables
from turnwise_study.figures import Panel, Point, by_update, dots, during_figure, standalone
from turnwise_study.runs import RunMetrics
from turnwise_study.sweeps.jobs import ask

SWEEP = """
paper: P
entry: Table 1
title: P Table 1
columns: {score: in_domain.after, other: null}
rows:
  base: {label: Base, overrides: method=sft trainer.max_epochs=0, numbers: {score: 10}}
  ours: {label: Ours & more, overrides: method=pivotrl, numbers: {score: 20, other: 3}}
  late: {label: Not run, overrides: method=grpo, numbers: {score: 15}}
  bare: {label: Without numbers, overrides: method=local}
directions: {in_domain.after: [ours > base], in_domain.delta: [ours > 0]}
"""


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "p_tab1.yaml").write_text(SWEEP)
    for row, scores in (("base", [30.0]), ("ours", [50.0, 60.0, 70.0])):
        for seed, score in enumerate(scores):
            folder = tmp_path / f"outputs/p/tab1/{row}/seed{seed}"
            folder.mkdir(parents=True)
            result = {"method": "m", "env": "e", "scale": "tiny", "seed": seed}
            result["in_domain"] = {"base": 30.0, "after": score}
            (folder / "result.json").write_text(json.dumps(result))
    asked = ask(["sweep=p_tab1"], tmp_path / "conf")
    return read_entry(asked, [tmp_path / "outputs"])


def test_our_numbers_are_drawn_beside_the_papers(entry: Entry) -> None:
    after, delta = entry_figures(entry)
    root = ET.fromstring(standalone(after))
    texts = " ".join(element.text or "" for element in root.iter() if element.tag.endswith("text"))
    assert all(name in texts for name in ("Base", "Ours & more", "Not run", "paper, score"))
    assert "Without numbers" not in texts and "paper" not in delta.alt
    assert "Ours & more 60.0" in after.alt and "Base 30.0" in after.alt  # means over seeds


def test_the_table_has_our_interval_and_the_papers_numbers(entry: Entry) -> None:
    table = entry_tables(entry)[0]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["Ours & more"][:2] == ["0, 1, 2", "60.0 +- 24.8"]  # t(0.975, 2) = 4.303, std 10
    assert rows["Not run"][0] == "-" and "15" in rows["Not run"]


def test_one_long_interval_leaves_the_points_of_the_other_rows_apart() -> None:
    points = [Point(name, value, value - 1, value + 1) for name, value in zip("abcd", (1.0, 2.0, 3.0, 4.0))]
    near = dots("T", "k", [Panel("", points)]).svg
    far = dots("T", "k", [Panel("", [*points, Point("e", 2.5, -500.0, 500.0)])]).svg
    assert ">500<" not in far and ">400<" not in far and "<svg" in near


def test_without_runs_there_is_no_figure(entry: Entry) -> None:
    entry.rows = {row: {} for row in entry.rows}
    assert entry_figures(entry) == []


def run(folder: Path, looks: dict[int, tuple[float, float]], greedy: bool = False) -> RunMetrics:
    folder.mkdir(parents=True)
    key = "success_greedy" if greedy else "success"
    rows = [
        {"phase": "eval", "iteration": at, f"eval/seen/{key}": seen, f"eval/unseen/{key}": unseen, "eval/ood/x": 1.0}
        for at, (seen, unseen) in reversed(looks.items())
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = {"base": 0.0, "after": 1.0, "decoding": "greedy" if greedy else "sampled"}
    result = {"method": "m", "env": "e", "scale": "tiny", "seed": 0, "in_domain": scores}
    (folder / "result.json").write_text(json.dumps(result))
    return RunMetrics(folder, read_result(folder))


def test_evaluations_in_order_as_the_mean_over_splits(tmp_path: Path) -> None:
    looks = {0: (10.0, 20.0), 4: (30.0, 50.0)}
    wanted = [(0, 15.0), (4, 40.0)]
    assert by_update(run(tmp_path / "a", looks)) == wanted
    assert by_update(run(tmp_path / "b", looks, greedy=True)) == wanted  # the decoding that the result is of


def test_lines_are_means_over_seeds_and_panels_hold_the_rows_that_they_name(tmp_path: Path) -> None:
    rows = {
        "one": {
            0: run(tmp_path / "a", {0: (10, 10), 4: (30, 30), 8: (50, 50)}),
            1: run(tmp_path / "b", {0: (20, 20), 8: (60, 60)}),
        },
        "base": {0: run(tmp_path / "c", {0: (5, 5)})},
        "resumed": {0: run(tmp_path / "d", {4: (5, 5), 8: (9, 9)})},  # nobody knows where it began
    }
    labels = {name: name.title() for name in rows}
    figure = during_figure("T", "k", rows, labels, {"Left": ["one", "resumed"], "None": ["base"]})
    assert figure is not None and "One 55.0 % at 8" in figure.alt
    assert ">Left<" in figure.svg and ">None<" not in figure.svg and "Resumed" not in figure.svg
    assert during_figure("T", "k", {"base": rows["base"]}, labels, {}) is None
