"""Creates the HTML page that compares finished runs: tables, and drawings of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from turnwise.evaluation.stats import Estimate, mean_interval
from turnwise.reports.dot_plots import Side, Spot, dots
from turnwise.reports.find_runs import FinishedRuns
from turnwise.reports.html_tables import tables_page
from turnwise.reports.overlaid_training_curves import overlays
from turnwise.reports.run_figures import within
from turnwise.reports.same_tasks import task_notes
from turnwise.reports.sentences import signed
from turnwise.reports.svg import Figure
from turnwise.reports.tables import Table


def comparison_page(
    collection: FinishedRuns,
    tables: Sequence[Table],
    lines: Sequence[str],
    first: Sequence[Figure] = (),
    page: Path | None = None,
) -> str:
    """Returns a page that compares runs, as HTML text. The page shows the figures ``first``, the tables, and drawings
    of every row: its training curves, and how its scores changed through training.

    Args:
        page: path at which the page will be written. Links to the runs are relative to it. If it is None, there are no
            links.
    """
    rows = [row for found in collection.sections.values() for row in found]
    names = Counter(row.name for row in rows)
    runs = {row.name: row.folders for row in rows if names[row.name] == 1}
    number = sum(len(row.results) for row in rows)
    figures = [*first, *comparison_figures(collection), *comparison_curves(collection)]
    return tables_page(f"{number} runs compared", tables, lines, figures, runs, page, task_notes(collection))


def comparison_figures(collection: FinishedRuns) -> list[Figure]:
    """Draws the change of held-out success, and of the out-of-domain score, for each environment and scale."""
    figures = []
    for index, ((env, scale), rows) in enumerate(collection.sections.items()):
        for metric, title in (("in_domain.delta", "Held-out change"), ("ood.mean_change", "Out-of-domain change")):
            found = {row.name: mean_interval(list(row.values(metric).values())) for row in rows if row.values(metric)}
            if found:
                figures.append(_changes(found, f"{title}: {env}, {scale}", f"compare-{index}-{metric.split('.')[0]}"))
    return figures


def comparison_curves(collection: FinishedRuns) -> list[Figure]:
    """Draws the training curves of all rows, in one figure for each environment and scale."""
    drawn = (
        overlays(rows, f"Training curves: {env}, {scale}", f"curves-{index}")
        for index, ((env, scale), rows) in enumerate(collection.sections.items())
    )
    return [figure for figure in drawn if figure is not None]


def _changes(found: Mapping[str, Estimate], title: str, key: str) -> Figure:
    """Draws the change of each row. ``found`` holds label -> change with its interval."""
    spots = []
    for row, (name, change) in enumerate(found.items()):
        bounds = None if change.low is None or change.high is None else (change.low, change.high)
        said = f"{name}: {signed(change.mean)} points{within(bounds)}"
        spots.append(Spot(row, change.mean, said, "change", change.low, change.high))
    alt = f"{title}: {', '.join(f'{name} {signed(change.mean)}' for name, change in found.items())} points."
    return dots(title, key, alt, list(found), [Side("", spots, "change, points", zero=True)])
