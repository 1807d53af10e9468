"""The notebooks on real runs, small ones: they execute, and show the numbers of the Markdown page and of the HTML page."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from scripts import report

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
    "iterations=2",
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
    page, web = tmp_path / "page.md", tmp_path / "page.html"
    request = ["sweep=pivotrl_tab4", f"outputs={outputs}", "--markdown", str(page), "--html", str(web)]
    assert report.main(request) == 0
    capsys.readouterr()
    shown = executed("read_a_sweep", outputs, TURNWISE_PAPER="PivotRL")
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


@pytest.mark.parametrize("paper", ["TRACE", "Selective Rollout", "AWPO"])
def test_a_papers_sweeps(paper: str, outputs: Path) -> None:
    groups = outputs / "selective" / "tab5" / "baseline" / "seed0"
    gates = {"TURNWISE_GROUPS": str(groups)} if paper == "Selective Rollout" else {}
    shown = executed("read_a_sweep", outputs, TURNWISE_PAPER=paper, **gates)
    text = "\n".join(shown)
    assert "The papers' directions, scale tiny" in text
    if paper == "AWPO":
        assert "AWPO, Table 2" in text
    else:
        assert any(part.startswith("<svg") for part in shown)
    if gates:
        assert "| d_K < |" in text  # the table of thresholds


def test_the_real_models_notebook_reads_the_kept_runs() -> None:
    shown = executed("real_model", ROOT / "results")
    assert shown[0].startswith("<svg") and "SFT on" in "".join(shown)


def test_the_quickstart_plays_and_trains_and_an_own_rule_trains_too(tmp_path: Path) -> None:
    small = " ".join(word for word in SMALL if not word.startswith(("policy", "trainer")))
    variables = {
        "TURNWISE_OUT": str(tmp_path),
        "TURNWISE_SMALL": f"{small} paths.cache={tmp_path / 'cache'} states.keep=all",
    }
    shown = executed("quickstart", tmp_path, **variables)
    assert any(part.startswith("<svg") for part in shown)
    variables["TURNWISE_SMALL"] = variables["TURNWISE_SMALL"].removesuffix(" states.keep=all")
    executed("own_credit_rule", tmp_path, **variables)
    recorded = yaml.safe_load((tmp_path / "discounted" / "config.yaml").read_text())["advantage"]
    assert recorded == {"_target_": "__main__.Discounted", "gamma": 0.9, "zero_variance": "drop"}
    assert {path.parent.name for path in tmp_path.glob("*/result.json")} == {"pivotrl", "group", "discounted"}


def test_one_batch_is_followed(tmp_path: Path) -> None:
    text = "\n".join(executed("follow_one_batch", tmp_path))
    apart = re.search(r"log-probs of trainer and sampler differ by at most (\S+)", text)
    assert apart is not None and float(apart[1]) < 1e-4 and "advantage" in text
