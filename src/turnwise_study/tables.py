"""Tables of text, shown on the terminal, in Markdown and on HTML pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from pathlib import Path
from urllib.parse import quote

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from turnwise.errors import InputError
from turnwise.evaluation.stats import Estimate
from turnwise.runs.page import render_page, write_page
from turnwise.text import signed


def plain(value: float) -> str:
    """A number with one decimal if its absolute value is at least 10, else with three significant digits."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def estimate_text(estimate: Estimate | None, show: Callable[[float], str] = signed) -> str:
    """The mean, and the half-width of its interval if there is one, such as ``12.3 +- 4.5``."""
    if estimate is None:
        return "-"
    mean = show(estimate.mean)
    if estimate.low is None or estimate.high is None:
        return mean
    half = (estimate.high - estimate.low) / 2
    half = half if half > 1e-9 * abs(estimate.mean) else 0.0  # below this limit it is a rounding error
    if "e" in mean or 0 < half < 1e-5:
        return f"{mean} +- {half:.2g}"
    # at least two significant digits, and at least as many decimals as the mean
    digits = max(1, len(mean.partition(".")[2]), 1 - floor(log10(half)) if half > 0 else 0)
    return f"{mean} +- {half:.{digits}f}"


@dataclass(slots=True)
class Table:
    """A table of text cells with a title; the first column is left-aligned, the others are right-aligned."""

    title: str
    headers: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    folders: dict[str, dict[int, Path]] = field(
        default_factory=dict
    )  # first cell of a row -> seed -> folder of the run

    def _repr_markdown_(self) -> str:  # how a notebook displays it
        return to_markdown([self])


def to_rich(table: Table) -> RichTable:
    rich = RichTable(box=SIMPLE_HEAD, title=table.title, title_justify="left", title_style="bold")
    for index, header in enumerate(table.headers):
        rich.add_column(header, justify="left" if index == 0 else "right", overflow="fold")
    for row in table.rows:
        rich.add_row(*row)
    return rich


def show(tables: Sequence[Table], console: Console) -> None:
    for table in tables:
        console.print(to_rich(table))
        console.print(*table.notes, "", sep="\n")


def to_markdown(tables: Sequence[Table], lines: Sequence[str] = ()) -> str:
    parts = []
    for table in tables:
        align = ["---", *["---:"] * (len(table.headers) - 1)]
        text = grid(table.headers, [[text.replace("|", "\\|") for text in row] for row in table.rows], align)
        parts += [f"### {table.title}", text.rstrip("\n"), *table.notes]
    return "\n\n".join([*parts, *lines]) + "\n"


def grid(head: Sequence[object], rows: Sequence[Sequence[object]], align: Sequence[str] | None = None) -> str:
    """A Markdown table of cells that are escaped already (:func:`cell`)."""
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in (head, align or ["---"] * len(head), *rows))


def facts(values: Mapping[str, object]) -> str:
    """A Markdown table with an empty header and a row for each (name, value)."""
    return grid(["", ""], [*values.items()])


def cell(text: str) -> str:
    """Returns ``text`` as one line, escaped for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def write_section(
    path: Path, text: str, section: str | None = None, pictures: Mapping[Path, str] | None = None
) -> None:
    """Writes ``text`` to ``path``. If ``section`` is given, only the text between the marks ``<!-- table:section -->``
    and ``<!-- /table:section -->`` is replaced.

    Args:
        pictures: path of an image -> its title. The images are shown above the text, unless the rest of the file
            already shows them.
    """
    above, below = "", ""
    if section is not None:
        begin, end = f"<!-- table:{section} -->", f"<!-- /table:{section} -->"
        page = path.read_text(encoding="utf-8") if path.exists() else ""
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise InputError(f"{path}: the file needs the line '{begin}' once and, below it, the line '{end}' once")
        above, below = f"{page[: page.index(begin)]}{begin}\n\n", f"\n{page[page.index(end) :]}"
    links = {Path(os.path.relpath(at, path.parent)).as_posix(): title for at, title in (pictures or {}).items()}
    shown = [f"![{title}]({link})\n\n" for link, title in links.items() if f"]({link})" not in above + below]
    write_page(path, above + "".join(shown) + text + below)


def tables_page(
    title: str,
    tables: Sequence[Table],
    lines: Sequence[str],
    page: Path,
    figures: Sequence[object] = (),
) -> str:
    """An HTML page with the table of verdicts, the figures, the other tables, and ``lines``. Seeds link to the reports of
    their runs, relative to ``page``, the path at which the page will be written.
    """
    first = [table for table in tables if "verdict" in table.headers][:1]
    links = {
        (label, str(seed)): _link(folder, page)
        for table in tables
        for label, seeds in table.folders.items()
        for seed, folder in seeds.items()
    }
    rest = sorted((table for table in tables if table not in first), key=lambda table: "verdict" not in table.headers)
    return render_page(
        "comparison.html.jinja",
        "turnwise_study",
        title=title,
        first=first,
        tables=rest,
        figures=figures,
        lines=lines,
        links=links,
    )


def _link(folder: Path, page: Path) -> str:
    target = next((folder / name for name in ("report.html", "result.json") if (folder / name).exists()), folder)
    return quote(Path(os.path.relpath(target.resolve(), page.resolve().parent)).as_posix())
