"""The page of a run on dialogues of a file: its held-out curve, and its table of replies on a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnwise_study.figures import success
from turnwise_study.run_files import read_run
from turnwise_study.run_page import write_report

HELD_OUT = {0: (10.5, 1.5), 8: (20.0, 2.5), 16: (44.5, 3.5)}  # iteration -> replies accepted and the same, %


@pytest.fixture
def folder(make: Any, tmp_path: Path) -> Path:
    """A run that was judged on held-out replies of forty tools, and evaluated three times."""
    folder = make.write_run(tmp_path / "own", states=20)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["phase"] != "eval"] + [
        {"iteration": i, "phase": "eval", "eval/held_out/functional": accepted, "eval/held_out/strict": same}
        for i, (accepted, same) in HELD_OUT.items()
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = json.loads((folder / "result.json").read_text())
    change = {"base": 10.5, "after": 44.5, "delta": 34.0, "delta_ci95": [12.25, 55.75]}
    nll = {"base": 2.5, "after": 1.125, "delta": -1.375, "delta_ci95": [-1.625, -1.0625]}
    replies = {"replies": 1234, "functional": change, "strict": change, "nll": nll}
    tools = {f"a_tool_with_a_name_that_is_long_{i}": replies for i in range(40)}
    result["in_domain"] = change | {"tasks": 1234, "decoding": "sampled"}
    result["held_out"] = replies | {"dialogues": 200, "by_tool": tools, "by_turn": {"1": replies}}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_the_curve_is_that_of_the_held_out_replies(folder: Path) -> None:
    figure = success(read_run(folder))
    assert figure is not None
    for before, after in zip(HELD_OUT[0], HELD_OUT[16], strict=True):
        assert f"from {before} to {after}" in figure.alt
    assert figure.svg in write_report(folder).read_text(encoding="utf-8")
