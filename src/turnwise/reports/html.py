"""``report.html``: one self-contained page a run, with inline style and drawings and nothing fetched from anywhere."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from turnwise.files import whole
from turnwise.reports import headline
from turnwise.reports.compare import Collection, Interval, Row
from turnwise.reports.figures import comparison, run_figures
from turnwise.reports.run import Run, read_run
from turnwise.reports.svg import Figure
from turnwise.reports.tables import Table
from turnwise.reports.views import in_domain_rows, pair_views, tree_views

BROWSER = "rollouts.html"  # of turnwise.reports.browser
CONFIG_LIMIT = 120_000  # characters of the configuration shown
KINDS = {
    "solved": "failed before, solved after",
    "lost": "solved before, failed after",
    "kept": "solved both times",
    "failed": "failed both times",
}


def write_report(folder: Path | str) -> Path:
    """Render ``<folder>/report.html`` from whatever the run folder holds, and return its path.

    Raises:
        FileNotFoundError: when ``folder`` is no folder.
        OSError: when the page cannot be written; the previous one stays.
    """
    path = Path(folder) / "report.html"
    write_page(path, render(read_run(folder)))
    return path


def write_page(path: Path, page: str) -> None:
    """Write a page so that a reader sees the old one or the new, never a half."""
    with whole(path) as part:
        part.write_text(page, encoding="utf-8")


def render(run: Run) -> str:
    """The report of one run as HTML text."""
    result = run.result
    trees = tree_views(run.rollouts.shown)
    return environment().get_template("report.html.jinja").render(
        run=run,
        result=result,
        title=f"{result.method} on {result.env}, seed {result.seed}" if result else f"{run.folder.name} (unfinished)",
        verdict=headline.verdict(result.in_domain) if result else None,
        rows=in_domain_rows(result.in_domain) if result else [],
        figures=run_figures(run),
        trees=trees,
        pairs=pair_views(run.episodes),
        kinds=KINDS,
        command=_command(run),
        recorded=bool(run.overrides or (result and result.command)),
        config=run.config_text[:CONFIG_LIMIT],
        browser=(run.folder / BROWSER).exists(),
    )  # fmt: skip


def comparison_page(
    collection: Collection,
    tables: Sequence[Table],
    lines: Sequence[str],
    interval: Interval,
    first: Sequence[Figure] = (),
) -> str:
    """Runs side by side as HTML text: the tables, and the changes of every row with their intervals drawn, after ``first``."""
    runs = sum(len(row.results) for rows in collection.sections.values() for row in rows)
    return tables_page(f"{runs} runs compared", tables, lines, [*first, *comparison_figures(collection, interval)])


def tables_page(title: str, tables: Sequence[Table], lines: Sequence[str], figures: Sequence[Figure] = ()) -> str:
    """Tables, drawings and closing lines as HTML text."""
    template = environment().get_template("comparison.html.jinja")
    return template.render(title=title, tables=tables, figures=figures, lines=lines)


def comparison_figures(collection: Collection, interval: Interval) -> list[Figure]:
    """Held-out and out-of-domain change of every row, a drawing each."""
    figures = []
    for index, ((env, scale), rows) in enumerate(collection.sections.items()):
        for metric, title in (("in_domain.delta", "Held-out change"), ("ood.mean_change", "Out-of-domain change")):
            drawn = [_drawn(row, metric, interval) for row in rows if row.values(metric)]
            if drawn:
                figures.append(comparison(drawn, f"{title}: {env}, {scale}", f"compare-{index}-{metric.split('.')[0]}"))
    return figures


def _drawn(row: Row, metric: str, interval: Interval) -> tuple[str, float, tuple[float, float] | None]:
    estimate = interval(list(row.values(metric).values()))
    bounds = None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)
    return row.name, estimate.mean, bounds


def environment() -> Environment:
    """Templates with autoescaping on: what a model wrote is text on the page, never markup."""
    folder = files("turnwise.reports") / "templates"
    sources = {item.name: item.read_text(encoding="utf-8") for item in folder.iterdir() if item.name.endswith(".jinja")}
    env = Environment(
        loader=DictLoader(sources), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("percent", "signed", "interval", "count", "duration"):
        env.filters[name] = getattr(headline, name)
    env.filters["drawing"] = Markup  # only ever given SVG drawn by reports.svg, whose text is escaped there
    env.globals.update(
        ood_sentence=headline.ood_sentence,
        cost_sentence=headline.cost_sentence,
        judge_sentence=headline.judge_sentence,
        verifier_sentence=headline.verifier_sentence,
        scale_sentence=headline.scale_sentence,
    )
    return env


def _command(run: Run) -> str:
    """The command that starts this run again, from its result, its Hydra overrides or its own fields."""
    result = run.result
    if result is not None and result.command:
        return result.command
    overrides = run.overrides
    if not overrides and result is not None:
        overrides = [f"method={result.method}", f"env={result.env}", f"scale={result.scale}", f"seed={result.seed}"]
    return shlex.join(["python", "train.py", *overrides])
