"""Held-out success by update: what is read of a run, its lines by hand, and which sweeps ask for it."""

from __future__ import annotations

import json
from pathlib import Path

from turnwise.runs.result_file import read_result
from turnwise_study.figures import by_update, during_figure
from turnwise_study.runs import RunMetrics


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
