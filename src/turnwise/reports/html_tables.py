"""Creates HTML pages of tables. The verdicts become the second column, and each seed links to the report of its run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from turnwise.reports.claim_verdict import VERDICTS, tally
from turnwise.reports.html_pages import environment
from turnwise.reports.svg import Figure
from turnwise.reports.tables import Table

Runs = Mapping[str, Mapping[int, Path]]
"""Label of a row -> seed -> folder of the run."""


@dataclass(frozen=True, slots=True)
class Link:
    text: str
    href: str


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    word: str = ""  # a verdict, which the page shows before the text
    links: Sequence[Link] = ()  # if there are any, the page shows them instead of the text


@dataclass(frozen=True, slots=True)
class Box:
    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str]


def tables_page(
    title: str,
    tables: Sequence[Table],
    lines: Sequence[str],
    figures: Sequence[Figure] = (),
    runs: Runs | None = None,
    page: Path | None = None,
    warnings: Sequence[str] = (),
) -> str:
    """Returns a page as HTML text. It shows the table with verdicts, then the drawings, then the other tables, then
    ``lines``.

    Args:
        runs, page: the folders of the runs by row and seed, and the path at which the page will be written. Both are
            needed for links to the runs.
    """
    first = with_verdicts(tables)
    return environment().get_template("comparison.html.jinja").render(
        title=title,
        tally=tally(first),
        ours=first is not None and any(", our claim" in text for row in first.rows for text in row),
        first=None if first is None else box(first, runs or {}, page),
        tables=[box(table, runs or {}, page) for table in tables if table is not first],
        figures=figures,
        lines=lines,
        warnings=warnings,
    )  # fmt: skip


def box(table: Table, runs: Runs, page: Path | None) -> Box:
    """Converts a table for an HTML page. The verdict column becomes the second column. Seeds link to their runs,
    relative to the path ``page``; there are no links if ``page`` is None.
    """
    order = list(range(len(table.headers)))
    if "verdict" in table.headers:
        order.insert(1, order.pop(table.headers.index("verdict")))
    headers = [table.headers[i] for i in order]
    rows = [[_cell(headers[at], row[i], row[0], runs, page) for at, i in enumerate(order)] for row in table.rows]
    return Box(table.title, headers, rows, table.notes)


def _cell(header: str, text: str, row: str, runs: Runs, page: Path | None) -> Cell:
    word = next((word for word in VERDICTS if header == "verdict" and text.startswith(word)), "")
    if word:
        return Cell(text.removeprefix(word).lstrip(",: "), word)
    found = runs.get(row, {}) if header == "seeds" and page is not None else {}
    if page is None or not found or text != ", ".join(map(str, sorted(found))):
        return Cell(text)
    return Cell(text, links=[Link(str(seed), _href(found[seed], page)) for seed in sorted(found)])


def _href(folder: Path, page: Path) -> str:
    """Returns the relative link from a page to a run's ``report.html``, else to ``result.json``, else to the folder."""
    target = next((folder / name for name in ("report.html", "result.json") if (folder / name).exists()), folder)
    return quote(Path(os.path.relpath(target.resolve(), page.resolve().parent)).as_posix())


def with_verdicts(tables: Sequence[Table]) -> Table | None:
    return next((table for table in tables if "verdict" in table.headers), None)
