"""scripts/report.py as people call it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("report_script", ROOT / "scripts" / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def runs(tmp_path, make):
    for seed in range(2):
        folder = tmp_path / "outputs" / f"seed{seed}"
        folder.mkdir(parents=True)
        raw = make.result(seed=seed, shift=seed, name="pivotrl/tab1/pivotrl")
        (folder / "result.json").write_text(json.dumps(raw))
    return tmp_path / "outputs"


def test_markdown_page_and_reports(script, runs, tmp_path, capsys):
    page, notes = tmp_path / "cmp.html", tmp_path / "docs" / "results.md"
    paper = ROOT / "conf" / "sweep" / "pivotrl_tab1.yaml"
    arguments = [str(runs), "--paper", str(paper), "--markdown", str(notes), "--html", str(page), "--rebuild"]
    assert script.main([*arguments, "--machine", "two cores"]) == 0
    text = notes.read_text()
    assert "### household, scale tiny" in text
    assert "| PivotRL | 0, 1 | 33.9 +- 0.0 | 55.2 +- 6.4 | +21.3 +- 6.4 |" in text  # t(0.975, 1) = 12.706
    assert "63.81" in text
    assert "Machine: two cores." in text
    assert f"--markdown {notes}" in text
    assert "<svg" in page.read_text()
    assert all((runs / f"seed{seed}" / "report.html").exists() for seed in range(2))
    assert "PivotRL" in capsys.readouterr().out


def test_a_section_of_a_page_that_people_write(script, runs, tmp_path, capsys):
    page = tmp_path / "results.md"
    page.write_text("# Ours\n\n<!-- table:one -->\nstale\n<!-- /table:one -->\n\nkept\n")
    for _ in range(2):  # writing again changes nothing but the table
        assert script.main([str(runs), "--markdown", str(page), "--section", "one"]) == 0
    text = page.read_text()
    assert text.startswith("# Ours\n\n<!-- table:one -->\n\n### household")
    assert text.endswith("<!-- /table:one -->\n\nkept\n")
    assert "stale" not in text
    before = page.read_text()
    assert script.main([str(runs), "--markdown", str(page), "--section", "two"]) == 2
    assert "<!-- table:two -->" in capsys.readouterr().err
    assert page.read_text() == before


def test_bad_folders_end_with_one_message(script, tmp_path, capsys):
    assert script.main([str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_sweep_of_other_runs_is_noted(script, runs, capsys):
    assert script.main([str(runs), "--paper", str(ROOT / "conf" / "sweep" / "pivotrl_tab4.yaml")]) == 0
    assert "none of these runs is a row of it" in " ".join(capsys.readouterr().out.split())
