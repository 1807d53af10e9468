"""Numbers and tables as text, shown on the terminal, in Markdown and on HTML pages."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from math import floor, log10
from pathlib import Path
from time import localtime, strftime
from urllib.parse import quote

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from turnwise.errors import InputError
from turnwise.evaluation.stats import Estimate
from turnwise.files import atomic_write
from turnwise.runs.result_file import progress, remaining


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def signed(value: float | None) -> str:
    """Returns a change in percentage points with its sign, such as ``+20.8``. Zero has no sign."""
    if value is None:
        return "-"
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}"


def interval(bounds: Sequence[float] | None, show: Callable[[float], str] = signed) -> str:
    return "-" if bounds is None else f"[{show(bounds[0])}, {show(bounds[1])}]"


def count(value: int | float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    if value is None:
        return "-"
    return count(value) if abs(value) >= 1000 else f"{value:.3g}"


def nats(value: float | None, sign: bool = False) -> str:
    return "-" if value is None else f"{value:+.3f}" if sign else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Returns a duration such as ``8.4 s``, ``7 min 05 s`` or ``2 h 03 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def plain(value: float) -> str:
    """Returns a number with one decimal if its absolute value is at least 10, else with three significant digits."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def estimate_text(estimate: Estimate | None, show: Callable[[float], str] = signed) -> str:
    """Returns the mean, and the half-width of its interval if there is one, such as ``12.3 +- 4.5``."""
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

    def _repr_markdown_(self) -> str:  # how a notebook displays it
        return to_markdown([self])


def to_rich(table: Table) -> RichTable:
    rich = RichTable(box=SIMPLE_HEAD, title=table.title, title_justify="left", title_style="bold")
    for index, header in enumerate(table.headers):
        rich.add_column(header, justify="left" if index == 0 else "right", overflow="fold")
    for row in table.rows:
        rich.add_row(*row)
    return rich


def to_markdown(tables: Sequence[Table], lines: Sequence[str] = ()) -> str:
    """Returns the tables as Markdown, each with a heading and its notes, and ``lines`` at the end."""
    parts = []
    for table in tables:
        align = ["---", *["---:"] * (len(table.headers) - 1)]
        text = grid(table.headers, [[text.replace("|", "\\|") for text in row] for row in table.rows], align)
        parts += [f"### {table.title}", text.rstrip("\n"), *table.notes]
    return "\n\n".join([*parts, *lines]) + "\n"


def grid(head: Sequence[object], rows: Sequence[Sequence[object]], align: Sequence[str] | None = None) -> str:
    """Returns a Markdown table of cells that are escaped already (:func:`cell`)."""
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in (head, align or ["---"] * len(head), *rows))


def facts(values: Mapping[str, object]) -> str:
    """Returns a Markdown table with an empty header and a row for each (name, value)."""
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


def write_page(path: Path, page: str) -> None:
    """Writes a page atomically: the previous page stays visible until the new page is complete."""
    with atomic_write(path) as part:
        part.write_text(page, encoding="utf-8")


def script(name: str) -> dict[str, str]:
    """Returns the text of a script of ``templates/``, and its hash, which the page's security policy allows."""
    text = (files("turnwise_study") / "templates" / name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"script": Markup(text), "script_hash": f"sha256-{digest}"}


def render(template: str, **values: object) -> str:
    folder = files("turnwise_study") / "templates"
    sources = {item.name: item.read_text(encoding="utf-8") for item in folder.iterdir() if item.name.endswith(".jinja")}
    env = Environment(
        loader=DictLoader(sources), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for show in (percent, signed, interval, count, duration, nats, progress, remaining):
        env.filters[show.__name__] = show
    env.filters["drawing"] = Markup  # marks text as safe HTML: only for SVG of reports.figures, which escapes its text
    env.filters["clock"] = lambda seconds: strftime("%Y-%m-%d %H:%M:%S", localtime(seconds))
    return env.get_template(template).render(**values)


def tables_page(
    title: str,
    tables: Sequence[Table],
    lines: Sequence[str],
    figures: Sequence[object] = (),
    runs: Mapping[str, Mapping[int, Path]] | None = None,
    page: Path | None = None,
) -> str:
    """Returns an HTML page with the table of verdicts, the figures, the other tables, and ``lines``.

    Args:
        runs, page: label of a row -> seed -> folder of the run, and the path at which the page will be written. With
            both, each seed links to the report of its run.
    """
    ordered = sorted(tables, key=lambda table: "verdict" not in table.headers)
    first = [table for table in ordered if "verdict" in table.headers][:1]
    links = {
        (label, str(seed)): _link(folder, page)
        for label, seeds in (runs or {}).items()
        for seed, folder in seeds.items()
        if page is not None
    }
    return render(
        "comparison.html.jinja", title=title, first=first, tables=[t for t in ordered if t not in first],
        figures=figures, lines=lines, links=links,
    )  # fmt: skip


def _link(folder: Path, page: Path) -> str:
    target = next((folder / name for name in ("report.html", "result.json") if (folder / name).exists()), folder)
    return quote(Path(os.path.relpath(target.resolve(), page.resolve().parent)).as_posix())
