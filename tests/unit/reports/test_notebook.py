"""What the notebooks show, from a synthetic run; and that they are committed as they should be."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest

from turnwise.errors import InputError
from turnwise.reports.notebook import changes, curves, drawn, judged, paper_entries, runs_under, shown, tree_lines
from turnwise.reports.read_run import read_run
from turnwise.reports.tables import Table
from turnwise.reports.tree_views import tree_views
from turnwise.runs.archive import write_archive

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def outputs(run_folder: Path) -> Path:
    """The folder above ``pivotrl/seed0``."""
    return run_folder.parents[1]


def test_every_entry_of_a_paper_is_read(outputs: Path) -> None:
    entries = paper_entries("TRACE", ROOT / "conf", [outputs])
    assert len(entries) == len(list((ROOT / "conf" / "sweep").glob("trace_*.yaml")))
    assert {entry.asked.scale for entry in entries} == {"tiny"}
    with pytest.raises(InputError, match=r"paper 'Nobody'.*TRACE"):
        paper_entries("Nobody", ROOT / "conf", [outputs])


def test_runs_are_found_by_name(outputs: Path) -> None:
    assert list(runs_under([outputs], "pivotrl")) == ["pivotrl/seed0"]
    assert runs_under([outputs], "nothing") == {}


def test_a_metric_of_several_runs_is_drawn(outputs: Path) -> None:
    runs = runs_under([outputs], "pivotrl") | {"again": read_run(outputs / "pivotrl" / "seed0")}
    figure = curves(runs, "train/reward_std", "Spread")
    assert figure is not None and figure.alt == "Spread: pivotrl/seed0 from 0.36 to 0.243; again from 0.36 to 0.243."
    assert drawn(figure)._repr_svg_().startswith("<svg")
    assert curves(runs, "train/nothing", "Nothing") is None
    assert "No run" in drawn(None)._repr_markdown_()


def test_changes_and_judges_as_tables(outputs: Path) -> None:
    runs = runs_under([outputs], "pivotrl")
    result = runs["pivotrl/seed0"].result
    assert result is not None
    assert changes(runs).rows == [["pivotrl/seed0", f"{result.in_domain.delta:+.1f}", "-0.5"]]
    assert judged(runs).rows == []
    result.judge = {"asked": 1200.0, "failed": 3.0, "cached": 40.0}
    assert judged(runs).rows == [["pivotrl/seed0", "1,200", "3", "40"]]
    assert (
        shown(Table("t", ["a", "b"], [["1", "2"]]))._repr_markdown_()
        == "### t\n\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n"
    )


def test_a_tree_is_a_line_a_turn(make) -> None:
    (view,) = tree_views([make.deep_tree(depth=2)])
    assert tree_lines(view) == [
        "train/9 turn 0: 2 samples, mean reward 0.50",
        "- go to desk 1  [reward 0.00, advantage +1.00]",
        "  - step 0  [reward 0.00, advantage +1.00]",
        "    - step 1  [reward 1.00, advantage +1.00]",
        "  - look  [reward 0.00, advantage -1.00]",
    ]


def test_one_notebook_a_paper_and_two_for_runs() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "awpo",
        "inspect_rollouts",
        "pivotrl",
        "quickstart",
        "selective",
        "trace",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_and_only_reads(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)
    for cell in code:
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("turnwise"):
                assert str(node.module).split(".")[1] in ("reports", "evaluation", "analysis"), node.module
                assert node.module != "turnwise.evaluation.suites"


def test_kept_runs_are_read_where_there_are_no_others(make, tmp_path: Path) -> None:
    own = make.write_run(tmp_path / "outputs" / "pivotrl" / "seed0", seed=0, states=20)
    for seed in range(2):
        folder = make.write_run(tmp_path / "kept" / f"seed{seed}", seed=seed, states=20)
        files = {f"seed{seed}/{name}": (folder / name).read_bytes() for name in ("result.json", "metrics.jsonl")}
        write_archive(tmp_path / "results" / "pivotrl", files)
    runs = runs_under([tmp_path / "outputs", tmp_path / "results"], "pivotrl")
    assert list(runs) == ["pivotrl/seed0", "pivotrl/seed1"] and runs["pivotrl/seed0"].folder == own
    kept = runs["pivotrl/seed1"]
    assert kept.folder.parent.parent.name == "results" and len(kept.series("train/reward_mean")[0]) == 40
