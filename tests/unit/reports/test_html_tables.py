"""Tables as a page shows them."""

from __future__ import annotations

from pathlib import Path

from turnwise.reports.claim_verdict import tally
from turnwise.reports.html_tables import Cell, Link, box, tables_page, with_verdicts
from turnwise.reports.tables import Table

CLAIMS = Table(
    "Claims",
    ["claim", "metric", "verdict"],
    [
        ["a > b", "m", "holds"],
        ["a > c", "m", "not_run: no groups are recorded"],
        ["a > d", "m", "fails, our claim"],
        ["b > d", "m", "holds"],
    ],
)
ROWS = Table("Rows", ["row", "seeds", "ours"], [["A", "0, 1", "2.5"], ["B", "0", "-"], ["C", "3 of 3", "1"]])


def test_the_verdict_follows_the_claim_as_a_word() -> None:
    shown = box(CLAIMS, {}, None)
    assert shown.headers == ["claim", "verdict", "metric"]
    assert shown.rows[0][1] == Cell("", "holds")
    assert shown.rows[1][1] == Cell("no groups are recorded", "not_run") and shown.rows[2][1] == Cell(
        "our claim", "fails"
    )
    assert [cell.text for cell in shown.rows[0]] == ["a > b", "", "m"]


def test_claims_of_ours_are_not_counted() -> None:
    assert tally(CLAIMS) == [("holds", 2), ("not_run", 1)]
    assert tally(with_verdicts([ROWS])) == [] and with_verdicts([ROWS, CLAIMS]) is CLAIMS


def test_seeds_lead_to_the_reports_of_their_runs(tmp_path: Path) -> None:
    folders = {seed: tmp_path / "out puts" / f"seed{seed}" for seed in (0, 1)}
    for folder in folders.values():
        folder.mkdir(parents=True)
        (folder / "result.json").touch()
    (folders[1] / "report.html").touch()
    shown = box(ROWS, {"A": folders, "C": folders}, tmp_path / "docs" / "page.html")
    links = (Link("0", "../out%20puts/seed0/result.json"), Link("1", "../out%20puts/seed1/report.html"))
    assert tuple(shown.rows[0][1].links) == links
    assert shown.rows[1][1] == Cell("0") and shown.rows[2][1] == Cell("3 of 3")  # no run known; no list of seeds
    assert box(ROWS, {"A": folders}, None).rows[0][1] == Cell("0, 1")


def test_a_page_says_that_claims_of_ours_are_not_counted() -> None:
    note = "is not counted"
    assert note in tables_page("Both", [CLAIMS], []) and "2 holds" in tables_page("Both", [CLAIMS], [])
    alone = Table("Claims", CLAIMS.headers, [row for row in CLAIMS.rows if "our claim" not in row[-1]])
    assert note not in tables_page("The paper's", [alone], [])
