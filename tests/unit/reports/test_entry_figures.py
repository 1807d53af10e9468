"""The picture of a paper's table."""

from __future__ import annotations

import importlib.util
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

from turnwise.experiments.command_line import ask
from turnwise.reports.dot_plots import Side, Spot, dots
from turnwise.reports.entries import Entry, read_entry
from turnwise.reports.entry_figures import entry_figures, run_folders
from turnwise.reports.entry_tables import entry_tables
from turnwise.reports.metric_labels import words
from turnwise.reports.svg import standalone

ROOT = Path(__file__).resolve().parents[3]
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
            result = {
                "method": "m",
                "env": "e",
                "scale": "tiny",
                "seed": seed,
                "in_domain": {"base": 30.0, "after": score},
            }
            (folder / "result.json").write_text(json.dumps(result))
    asked = ask(["sweep=p_tab1"], tmp_path / "conf")
    return read_entry(asked, [tmp_path / "outputs"])


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("report_script", ROOT / "scripts" / "report.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CONF", tmp_path / "conf")
    return module


def test_a_picture_that_stands_alone_has_its_title_and_what_its_signs_are(entry: Entry) -> None:
    after, change = entry_figures(entry)
    for figure in (after, change):
        root = ET.fromstring(standalone(figure))
        texts = " ".join(node.text or "" for node in root.iter() if node.tag.endswith("text"))
        assert figure.title in texts and "seed" in texts
        left, top, width, height = map(int, root.attrib["viewBox"].split())
        places = [float(node.attrib["y"]) for node in root if node.tag.endswith("text")]
        assert left == 0 and width > 300 and places and all(top < y < top + height for y in places)


def test_claims_are_in_the_words_of_the_rows(entry: Entry) -> None:
    claims = entry_tables(entry)[1].rows
    assert [row[:2] for row in claims] == [
        ["Ours & more > Base", words("in_domain.after")],
        ["Ours & more > 0", words("in_domain.delta")],
    ]


def test_rows_that_are_asked_for_are_drawn_alone(entry: Entry, tmp_path: Path) -> None:
    asked = ask(["sweep=p_tab1", "rows=ours"], tmp_path / "conf")
    one = read_entry(asked, [tmp_path / "outputs"])
    (after,) = [figure for figure in entry_figures(one) if figure.title.endswith(words("in_domain.after"))]
    assert "Ours & more 60." in after.alt and "Base" not in after.svg and "Not run" not in after.svg


def test_rows_that_have_a_number_are_drawn_beside_the_papers(entry: Entry) -> None:
    after, change = entry_figures(entry)
    assert after.title == f"P, Table 1: {words('in_domain.after')}" and after.wide
    assert "Base 30, Ours & more 60." in after.alt
    texts = {
        text for node in ET.fromstring(after.svg.replace("xlink:href", "href")).iter() for text in [node.text or ""]
    }
    assert {"Base", "Ours & more", "Not run", "paper, score", "ours, scale tiny", words("in_domain.after")} <= texts
    assert "Without numbers" not in texts and "other" not in texts
    assert not change.wide and "Base 0, Ours & more 30." in change.alt  # the paper has no column for it


def test_one_long_interval_leaves_the_points_of_the_other_rows_apart() -> None:
    """Of two seeds that differ by thirty points Student's interval is hundreds of points long."""
    spots = [Spot(row, 40.0 + row, "s", "ours", 35.0 + row, 45.0 + row) for row in range(4)]
    spots.append(Spot(4, 40.0, "s", "ours", -140.0, 220.0, {0: 26.0, 1: 54.0}))
    drawn = dots("T", "k", "a", ["a", "b", "c", "d", "e"], [Side("", spots)])
    ticks = [float(text.replace("\u2212", "-")) for text in re.findall(r">([\u2212-]?[\d.]+)</text>", drawn.svg)]
    assert ticks and min(ticks) >= -2 and max(ticks) <= 82  # the points' own spread of 28 on either side


def test_marks_say_what_the_table_says_and_names_are_whole(entry: Entry) -> None:
    after, _ = entry_figures(entry)
    for drawing in (after.svg, after.narrow):
        said = [
            node.text for node in ET.fromstring(drawing.replace("xlink:href", "href")).iter() if node.tag == "title"
        ]
        assert sorted(said) == sorted(
            [
                *("seed 0: 50.0", "seed 1: 60.0", "seed 2: 70.0"),
                *("Base: 30.0, seed 0 alone", "Ours & more: 60.0 +- 24.8, mean of 3 seeds"),
                *("Base: 10, paper, score", "Ours & more: 20, paper, score", "Not run: 15, paper, score"),
            ]
        )
        assert set(re.findall(r'<g data-series="([^"]*)"', drawing)) == {"ours", "score"}
    name = "a name of a row that is much longer than what there is room for beside an axis"
    texts = dots("T", "k", "a", [name], [Side("", [Spot(0, 1.0, "s", "ours")])])
    for drawing in (texts.svg, texts.narrow):
        assert all(word in drawing for word in name.split()) and "..." not in drawing


def test_only_what_is_drawn_is_explained(entry: Entry, tmp_path: Path) -> None:
    after, _ = entry_figures(entry)
    assert after.alt.endswith("lines are 95 % intervals over seeds; a row with one seed has only a dot.")
    for row, told in (
        ("base", "Each dot is one seed; there is no interval over seeds."),
        ("ours", "Faint dots are single seeds, strong dots are means, lines are 95 % intervals over seeds."),
    ):
        asked = ask(["sweep=p_tab1", f"rows={row}"], tmp_path / "conf")
        one = read_entry(asked, [tmp_path / "outputs"])
        assert entry_figures(one)[0].alt.endswith(f"{told}")


GATES = """
paper: P
entry: Table 7
title: P Table 7
gate_report: p_tab7
columns: {k10: "t7/10/{}/rho", saved: "{}/saved_pct", absent: "t7/5/{}/rho"}
rows:
  first: {numbers: {k10: 0.37}}
  second: {label: The other, numbers: {k10: -0.1}}
"""


def test_what_is_computed_from_groups_is_drawn_too(tmp_path: Path) -> None:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "p_tab7.yaml").write_text(GATES)
    gates = {
        "source": "recorded",
        "groups": 8,
        "data": "d",
        "t7": {"10": {"first": {"rho": 0.25, "rho_ci95": [0.125, 0.375]}, "second": {"rho": 0.5, "rho_ci95": None}}},
        "first": {"saved_pct": 12.5, "ci95": [10.0, 15.0]},
    }
    asked = ask(["sweep=p_tab7"], tmp_path / "conf")
    rho, saved = entry_figures(read_entry(asked, [], gates))
    assert rho.title == "P, Table 7: t7/10/{}/rho"
    assert "first: 0.25, 95 % [0.125, 0.375]" in rho.svg and "The other: 0.5<" in rho.svg and "paper, k10" in rho.svg
    assert rho.alt.endswith("lines are 95 % intervals; a dot without a line has no interval.")
    assert "first: 12.5, 95 % [10.0, 15.0]" in saved.svg and not saved.wide
    nothing = read_entry(asked, [], {**gates, "t7": {}, "first": {}})
    assert entry_figures(nothing) == []


def test_without_runs_there_is_no_picture(entry: Entry) -> None:
    for runs in entry.rows.values():
        runs.clear()  # type: ignore[attr-defined]
    assert entry_figures(entry) == []


def test_the_command_writes_it(entry: Entry, script: ModuleType, tmp_path: Path) -> None:
    files = ["--figure", str(tmp_path / "p.svg"), "--html", str(tmp_path / "p.html")]
    assert script.main(["sweep=p_tab1", f"outputs={tmp_path / 'outputs'}", *files]) == 0
    assert ET.parse(tmp_path / "p.svg").getroot().tag.endswith("svg") and (tmp_path / "p-2.svg").exists()
    assert (tmp_path / "p.html").read_text().count("<svg") == 4  # each once more for a phone


def test_the_command_says_where_there_is_nothing_to_draw(
    entry: Entry, script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.svg"
    assert script.main(["sweep=p_tab1", "rows=late", f"outputs={tmp_path / 'outputs'}", "--figure", str(path)]) == 0
    assert "No figure:" in capsys.readouterr().out and not path.exists()


def test_rows_of_one_name_lead_to_no_run(entry: Entry, tmp_path: Path) -> None:
    folders = run_folders(entry)
    assert folders["Ours & more"] == {seed: tmp_path / f"outputs/p/tab1/ours/seed{seed}" for seed in range(3)}
    entry.asked.sweep.rows["base"] = entry.asked.sweep.rows["ours"]
    assert "Ours & more" not in run_folders(entry)


def test_options_may_stand_anywhere(
    entry: Entry, script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["summary", "--json", f"outputs={tmp_path / 'outputs'}"]) == 0
    page = tmp_path / "page.md"
    for brief, count in (([], 3), (["--brief"], 1)):  # the summary, then rows and claims of its one entry
        script.main(["summary", "--json", "--markdown", str(page), *brief, f"outputs={tmp_path / 'outputs'}"])
        assert page.read_text().count("\n### ") + page.read_text().startswith("### ") == count
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"P": {"holds": 0, "fails": 0, "undecided": 1, "untestable": 0, "not_run": 0}}
