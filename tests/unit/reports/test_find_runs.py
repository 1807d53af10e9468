"""Runs across seeds, read off their folders, and whether the paper's claims hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from scripts import report

from turnwise.errors import InputError
from turnwise.runs.result_file import Result
from turnwise_study.comparison import comparison_table, runs_to_compare
from turnwise_study.entries import read_entry
from turnwise_study.entry_tables import entry_tables
from turnwise_study.run_metrics import RESULT, read_metric, values
from turnwise_study.sweeps.jobs import SweepRequest
from turnwise_study.sweeps.sweep_file import read_sweep
from turnwise_study.tables import to_markdown

# -- find runs ---------------------------------------------------------------------------------------------------------

SWEEP = {
    "paper": "P",
    "entry": "Table 1",
    "title": "Table 1",
    "columns": {"tau2": "in_domain.after", "swe": "in_domain.after"},
    "directions": {"in_domain.after": ["full > base", "sft > base", "base > full"]},
    "rows": {
        "base": {"label": "Base", "overrides": "method=sft iterations=0", "numbers": {"tau2": 44.35}},
        "sft": {"label": "SFT", "overrides": "method=sft", "numbers": {"tau2": 58.44, "swe": 37.4}},
        "full": {"label": "Full | ours", "overrides": "method=pivotrl", "numbers": {"tau2": 63.81}},
    },
}
AFTER_TRAINING = RESULT["in_domain.after"]
AFTER = {"base": (30.0, 31.0, 32.0), "sft": (34.0, 40.0, 31.0), "full": (50.0, 52.0, 57.0)}


@pytest.fixture
def runs(tmp_path, make):
    """Three rows of three seeds, as results alone."""
    for name, scores in AFTER.items():
        for seed, after in enumerate(scores):
            save(tmp_path, make, f"t/{name}", seed, after)
    return tmp_path


def save(root, make, name, seed, after, folder=None):
    path = root / (folder or f"{name}/seed{seed}")
    path.mkdir(parents=True)
    raw = make.result(seed=seed, name=name)
    raw["in_domain"] = {"base": 30.0, "after": after, "delta_ci95": [after - 36.0, after - 25.0], "tasks": 192}
    (path / "result.json").write_text(json.dumps(raw))
    (path / "config.yaml").write_text(yaml.safe_dump({"seed": seed, "paths": {"out": str(path)}}))
    return path


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "t.yaml"  # so the runs of its rows are named t/<row>
    path.write_text(yaml.safe_dump(SWEEP, sort_keys=False))
    return path


def test_the_table_by_hand(runs):
    collection = runs_to_compare([runs / "t" / "full", runs / "t" / "base" / "seed0"])
    ((env, scale), rows), *_ = collection.sections.items()
    table = comparison_table(env, scale, rows)
    # 50, 52, 57: mean 53, standard deviation 3.6056, t(0.975, 2) = 4.3027: half width 8.957
    assert table.rows[1] == [
        "t/full",
        "0, 1, 2",
        "30.0",
        "53.0 +- 9.0",
        "+23.0 +- 9.0",
        "-0.5 +- 0.0",
        "20,480",
        "7 min 37 s",
    ]
    assert table.rows[0] == [
        "t/base",
        "0",
        "30.0",
        "30.0",
        "0.0 [-6.0, +5.0]",
        "-0.5 [-1.6, +0.7]",
        "20,480",
        "7 min 37 s",
    ]
    text = to_markdown([table], ["Written by `x`."])
    assert "| t/full | 0, 1, 2 | 30.0 | 53.0 +- 9.0 |" in text
    assert "| --- | ---: |" in text
    assert "192 tasks" in text
    assert text.endswith("Written by `x`.\n")


def beside(sweep, place):
    return read_entry(SweepRequest(read_sweep(sweep), sweep.parents[1]), [place])


def test_tables_beside_the_paper(runs, sweep):
    numbers, claims, *_ = entry_tables(beside(sweep, runs))
    assert numbers.headers == ["row", "seeds", f"ours, {AFTER_TRAINING}", "paper, tau2", "paper, swe"]
    assert numbers.rows == [
        ["Base", "0, 1, 2", "31.0 +- 2.5", "44.35", "-"],
        ["SFT", "0, 1, 2", "35.0 +- 11.4", "58.44", "37.4"],
        ["Full | ours", "0, 1, 2", "53.0 +- 9.0", "63.81", "-"],
    ]
    # full - base: 20, 21, 25: mean 22, t half width 4.3027 * 2.6458 / sqrt(3) = 6.57, clear of zero
    # sft - base: 4, 9, -1: mean 4, half width 12.4
    said = {row[0]: (row[2], row[3], row[-1].partition(":")[0]) for row in claims.rows}
    assert said["Full | ours > Base"] == ("22.0", "[15.4, 28.6]", "holds")
    assert said["SFT > Base"] == ("4", "[-8.42, 16.4]", "undecided")
    assert said["Base > Full | ours"] == ("-22.0", "[-28.6, -15.4]", "fails")
    assert "Full \\| ours" in to_markdown([numbers])


def test_what_cannot_be_averaged_is_noted(runs, make):
    newer = save(runs, make, "t/sft", 0, 44.0, folder="again")
    os.utime(newer / "result.json", (2e9, 2e9))
    (runs / "half").mkdir()
    (runs / "half" / "config.yaml").write_text("seed: 0")
    torn = save(runs, make, "t/torn", 0, 44.0)
    (torn / "result.json").write_text("{")
    save(runs, make, "t/full", 0, 1.0, folder="t/full/seed0.old-1")
    collection = runs_to_compare([runs])
    rows = collection.sections["household", "tiny"]
    assert values(rows["t/sft"], "in_domain.after")[0] == 44.0
    assert values(rows["t/full"], "in_domain.after")[0] == 50.0
    notes = "\n".join(collection.notes)
    for words in (
        f"t/sft, seed 0: {newer} is used, because {runs / 't/sft/seed0'} is an older run.",
        "half: this run is not finished",
        "result.json: not JSON",
    ):
        assert words in notes
    assert len(collection.notes) == 3


def test_scales_are_never_mixed(runs, make):
    raw = make.result(seed=0, scale="paper", name="t/full")
    (runs / "big").mkdir()
    (runs / "big" / "result.json").write_text(json.dumps(raw))
    assert list(runs_to_compare([runs]).sections) == [("household", "paper"), ("household", "tiny")]


def test_metrics_by_path(make):
    result = Result.model_validate(make.result())
    assert read_metric(result, "in_domain.by_split.seen.base") == 35.4
    assert read_metric(result, "ood.after.algebra") == 39.0
    assert read_metric(result, "ood.base") == pytest.approx(54.5625)
    assert read_metric(result, "seconds") == pytest.approx(457.4)
    assert read_metric(result, "ood.after.nothing") is None
    for wrong in ("in_domain.afterr", "method", "in_domain"):
        with pytest.raises(InputError, match=wrong):
            read_metric(result, wrong)


def test_bad_folders_say_what_to_do(tmp_path):
    with pytest.raises(InputError, match="nowhere: this folder does not exist"):
        runs_to_compare([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="no run under"):
        runs_to_compare([tmp_path])


# -- report script -----------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]


@pytest.fixture
def two_seeds(tmp_path, make):
    for seed in range(2):
        folder = tmp_path / "outputs" / f"seed{seed}"
        folder.mkdir(parents=True)
        raw = make.result(seed=seed, shift=seed, name="pivotrl/tab4/full")
        (folder / "result.json").write_text(json.dumps(raw))
    return tmp_path / "outputs"


def test_markdown_page_and_reports(two_seeds, tmp_path, capsys):
    page, notes = tmp_path / "cmp.html", tmp_path / "docs" / "results.md"
    assert report.main([str(two_seeds), "--markdown", str(notes), "--html", str(page), "--rebuild"]) == 0
    text = notes.read_text()
    assert "### household, scale tiny" in text
    assert "| pivotrl/tab4/full | 0, 1 | 33.9 | 55.2 +- 6.4 | +21.3 +- 6.4 |" in text  # t(0.975, 1) = 12.706
    assert "Hash of the configuration of each row's first seed: pivotrl/tab4/full `9f2c41d7a0b3`." in text
    assert f"--markdown {notes}" in text
    assert "<table" in page.read_text()
    assert all((two_seeds / f"seed{seed}" / "report.html").exists() for seed in range(2))
    assert "pivotrl/tab4/full" in capsys.readouterr().out
    for wrong in (["--markdown", str(notes), "--section", "two"], ["--figure", str(tmp_path / "figure.pdf")]):
        assert report.main([str(two_seeds), *wrong]) == 2
    assert notes.read_text() == text


def refused(capsys, *words: str) -> str:
    """What is said of a command line that ends with 2; one line, and no table."""
    assert report.main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said
    return said.err.strip()


def test_seeds_and_folders_that_are_not_there_are_told(two_seeds, tmp_path, capsys, monkeypatch):
    request = ("sweep=pivotrl_tab4", "rows=full")
    assert "seed=99" in refused(capsys, *request, f"outputs={two_seeds}", "seed=99")
    assert "nothere" in refused(capsys, *request, f"outputs={two_seeds},{tmp_path / 'nothere'}")
    monkeypatch.chdir(tmp_path / "outputs")
    assert f"{tmp_path}/outputs/outputs" in refused(capsys, *request)


def test_a_summary_of_one_paper(capsys, tmp_path):
    outputs = f"outputs={tmp_path}"
    assert report.main(["summary", "paper=awpo", outputs]) == 0
    papers = {line.split(",")[0].split()[0] for line in capsys.readouterr().out.splitlines() if " awpo_" in line}
    assert papers == {"AWPO"}
    assert "paper=awp" in refused(capsys, "summary", "paper=awp", outputs)
    assert "paper=awpo" in refused(capsys, "sweep=awpo_tab2", "paper=awpo", outputs)


def test_a_report_does_not_wait_for_libraries_that_it_may_not_need():
    program = (
        "import sys; sys.path.insert(0, 'scripts'); import report;"
        "assert not {'matplotlib', 'pyarrow', 'scipy.stats', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
