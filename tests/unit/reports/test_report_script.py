"""scripts/report.py as people call it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.runs.result_file import keep

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
        raw = make.result(seed=seed, shift=seed, name="pivotrl/tab4/full")
        (folder / "result.json").write_text(json.dumps(raw))
    return tmp_path / "outputs"


def test_markdown_page_and_reports(script, runs, tmp_path, capsys):
    page, notes = tmp_path / "cmp.html", tmp_path / "docs" / "results.md"
    assert script.main([str(runs), "--markdown", str(notes), "--html", str(page), "--rebuild"]) == 0
    text = notes.read_text()
    assert "### household, scale tiny" in text
    assert "| pivotrl/tab4/full | 0, 1 | 33.9 | 55.2 +- 6.4 | +21.3 +- 6.4 |" in text  # t(0.975, 1) = 12.706
    assert "Hash of the configuration of each row's first seed: pivotrl/tab4/full `9f2c41d7a0b3`." in text
    assert f"--markdown {notes}" in text
    assert "<svg" in page.read_text()
    assert all((runs / f"seed{seed}" / "report.html").exists() for seed in range(2))
    assert "pivotrl/tab4/full" in capsys.readouterr().out


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
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_of_a_kept_run_is_made_again(script, tmp_path, make, capsys):
    keep([make.write_run(tmp_path / "outputs" / "r" / "seed0")], tmp_path / "outputs", tmp_path / "kept")
    place = tmp_path / "kept" / "r" / "seed0"
    assert script.main([str(place), "--rebuild"]) == 0
    assert (place / "report.html").is_file()


def test_a_figure_is_svg(script, runs, tmp_path, capsys):
    drawn = tmp_path / "figure.pdf"
    assert script.main([str(runs), "--figure", str(drawn)]) == 2 and not drawn.exists()


def refused(script, capsys, *words: str) -> str:
    """What is said of a command line that ends with 2; one line, and no table."""
    assert script.main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1, said
    return said.err.strip()


def test_seeds_and_folders_that_are_not_there_are_told(script, runs, tmp_path, capsys, monkeypatch):
    asked = ("sweep=pivotrl_tab4", "rows=full")
    assert "seed=99" in refused(script, capsys, *asked, f"outputs={runs}", "seed=99")
    assert "nothere" in refused(script, capsys, *asked, f"outputs={runs},{tmp_path / 'nothere'}")
    monkeypatch.chdir(tmp_path / "outputs")
    assert f"{tmp_path}/outputs/outputs" in refused(script, capsys, *asked)


def test_a_seed_beside_one_that_is_there_is_told_too(script, make, tmp_path, capsys):
    folder = tmp_path / "outputs" / "pivotrl" / "tab1" / "pivotrl_swe" / "seed0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(make.result(name="pivotrl/tab1/pivotrl_swe")))
    asked = ("sweep=pivotrl_tab1", "rows=pivotrl_swe", f"outputs={tmp_path / 'outputs'}")
    assert "seed=7" in refused(script, capsys, *asked, "seed=0,7")
    assert script.main([*asked, "seed=0", "--json"]) == 0
    *_, entry, counts = capsys.readouterr().out.splitlines()
    assert json.loads(counts)["PivotRL"] | {"one_seed": 0} == {
        **dict.fromkeys(("holds", "fails", "undecided", "untestable", "one_seed"), 0),
        "not_run": 1,
    }
    (changed,) = json.loads(entry)["changed"]  # the hash of a run that was made up
    assert (changed["row"], changed["seed"], changed["kept"]) == ("pivotrl_swe", 0, "9f2c41d7a0b3")


def test_a_summary_of_one_paper(script, capsys, tmp_path):
    outputs = f"outputs={tmp_path}"
    assert script.main(["summary", "paper=awpo", outputs, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out.splitlines()[-1])) == {"AWPO"}
    assert "paper=awp" in refused(script, capsys, "summary", "paper=awp", outputs)
    assert "paper=awpo" in refused(script, capsys, "sweep=awpo_tab2", "paper=awpo", outputs)


def test_a_report_does_not_wait_for_libraries_that_it_may_not_need():
    program = (
        "import sys; sys.path.insert(0, 'scripts'); import report;"
        "assert not {'matplotlib', 'pyarrow', 'scipy.stats', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_a_table_alone_is_printed_whole_and_draws_nothing(runs):
    program = (
        "import sys; sys.path.insert(0, 'scripts'); import report;"
        f"assert report.main([{str(runs)!r}]) == 0; assert 'matplotlib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True, text=True)
    assert "pivotrl/tab4/full" in done.stdout  # in a pipe, a name is not broken
