"""The notebooks on real runs, small ones: they execute, and show the numbers of the Markdown page and of the HTML page."""

from __future__ import annotations

import html
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from turnwise.config.schema import compose_config
from turnwise.training.loop import run

ROOT = Path(__file__).resolve().parents[2]
VERDICT = re.compile(r"^(holds|fails|undecided|untestable|not_run)[,:]? ?")
SMALL = [
    "policy.model=tiny",
    "env.horizon=6",
    "data.trajectories=6",
    "rollout.states=4",
    "rollout.trajectories=null",
    "rollout.sampling.max_tokens=8",
    "eval.tasks=2",
    "eval.attempts=1",
    "eval.items=1",
    "trainer.max_epochs=2",
]
RUNS = {
    "pivotrl/tab4/full": ["method=pivotrl", "states.keep=all", "states.k=2", "allocator.group_size=4"],
    "pivotrl/tab4/sft": ["method=sft"],
    "trace/tab5/trace_8b": ["method=trace", "env=household", "allocator.budget=8"],
    "selective/tab5/baseline": ["method=grpo", "allocator.group_size=4", "env.horizon=12"],
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real runs under the names that rows of the papers' tables have."""
    folder = tmp_path_factory.mktemp("runs") / "outputs"
    for name, overrides in RUNS.items():
        places = [f"name='{name}'", f"paths.out={folder / name}/seed0", f"paths.cache={folder / 'cache'}"]
        run(compose_config([*SMALL, *overrides, *places], ROOT / "conf"))
    return folder


def executed(name: str, outputs: Path, **variables: str) -> list[str]:
    """What the cells of a notebook showed, as Markdown, text or the beginning of a drawing."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    places = {"TURNWISE_OUTPUTS": str(outputs), "PYTHONPATH": str(ROOT / "src"), **variables}
    client = NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(ROOT / "notebooks")}})
    client.execute(env={**os.environ, **places})
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data: Any = output.get("data", {})
            assert output.output_type != "error"
            shown.append(
                data.get("text/html")
                or data.get("text/markdown")
                or data.get("image/svg+xml", "")[:200]
                or output.get("text", "")
            )
    return shown


def test_pivotrl_shows_the_numbers_of_the_pages(outputs: Path, tmp_path: Path, capsys) -> None:
    spec = importlib.util.spec_from_file_location("report_of_notebooks", ROOT / "scripts" / "report.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page, web = tmp_path / "page.md", tmp_path / "page.html"
    asked = ["sweep=pivotrl_tab4", f"outputs={outputs}", "--markdown", str(page), "--html", str(web)]
    assert script.main(asked) == 0
    capsys.readouterr()
    shown = executed("pivotrl", outputs)
    lines = {line for text in shown for line in text.splitlines()}
    table = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert len(table) > 8 and set(table) <= lines
    assert any("63.81" in line and "| 0 |" in line for line in table)  # the paper's number beside that of seed 0
    html = re.sub(r"<[^>]+>", "", web.read_text())  # seeds link to their runs
    for line in table:
        if not line.startswith("| ---"):
            assert all(
                VERDICT.sub("", cell.strip()) in html  # the page has the word apart from what follows it
                for cell in line.strip("|").split("|")
                if ">" not in cell and "`" not in cell
            )
    assert any(text.startswith("<svg") for text in shown)
    assert any("turns have different rewards" in text for text in shown)


@pytest.mark.parametrize("name", ["trace", "selective", "awpo"])
def test_a_papers_notebook(name: str, outputs: Path) -> None:
    groups = outputs / "selective" / "tab5" / "baseline" / "seed0"
    shown = executed(name, outputs, TURNWISE_GROUPS=str(groups) if name == "selective" else "")
    text = "\n".join(shown)
    assert "The papers' directions, scale tiny" in text
    if name == "awpo":
        assert "AWPO, Table 2" in text
    else:
        assert any(part.startswith("<svg") for part in shown)
    if name == "selective":
        assert "| d_K < |" in text  # the table of thresholds


def test_the_real_models_notebook_reads_the_kept_runs() -> None:
    shown = executed("real_model", ROOT / "results")
    assert shown[0].startswith("<svg") and "SFT on" in "".join(shown)


def test_rollouts_are_inspected(outputs: Path) -> None:
    text = "\n".join(executed("inspect_rollouts", outputs, TURNWISE_RUN=str(outputs / "pivotrl/tab4/full/seed0")))
    assert "before: " in text and "after: " in text


def test_the_quickstart_trains_and_shows_the_report_and_a_table(tmp_path: Path) -> None:
    folder = tmp_path / "seed0"
    small = [*SMALL, *RUNS["pivotrl/tab4/full"], f"paths.out={folder}", f"paths.cache={tmp_path / 'cache'}"]
    variables = {"TURNWISE_PYTHON": sys.executable, "TURNWISE_ARGS": shlex.join(small)}
    shown = executed("quickstart", tmp_path, **variables)
    result = json.loads((folder / "result.json").read_text())["in_domain"]
    assert f"{result['base']} % before, {result['after']} % after, over {result['tasks']} tasks" in "".join(shown)
    report, table = (html.unescape(text) for text in shown if text.startswith("<iframe"))
    assert "Held-out success" in report and "PivotRL" in table and "63.81" in table


def test_the_quickstart_runs_the_readmes_commands() -> None:
    """Without TURNWISE_PYTHON it runs `make train`, which is train.py with the arguments; the table is the README's line."""
    source = (ROOT / "notebooks" / "quickstart.ipynb").read_text()
    readme = (ROOT / "README.md").read_text()
    assert '\\"make\\", \\"train\\"' in source and "make train " in readme
    assert "scripts/report.py sweep=pivotrl_tab4 --html" in readme and 'sweep=pivotrl_tab4\\", \\"--html' in source
    told = subprocess.run(
        ["make", "--no-print-directory", "-n", "train", "ARGS=name=quickstart"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines()[-1].endswith("/python train.py method=pivotrl name=quickstart")
