"""Draws held-out success during training against the number of updates, with one line for each row of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from turnwise.reports.curves_over_cost import band
from turnwise.reports.line_plots import Panel, lines_figure
from turnwise.reports.run_metrics import RunMetrics
from turnwise.reports.sentences import judged_on_dialogues
from turnwise.reports.svg import Figure


def by_update(run: RunMetrics) -> list[tuple[float, float]]:
    """Returns the evaluations of a run in the order of training, as pairs (number of updates, success). Success is the
    percentage of solved held-out tasks, averaged over the splits ``seen`` and ``unseen``. The decoding mode (sampled or
    greedy) is that of ``in_domain``, the main result of the run. For a run on dialogues, success is the percentage of
    accepted replies.

    The list is empty if the run recorded no evaluation of this kind.
    """
    greedy = "_greedy" if getattr(run.result.in_domain, "decoding", None) == "greedy" else ""
    keys = [f"eval/{split}/success{greedy}" for split in ("seen", "unseen")]
    if judged_on_dialogues(run.result):
        keys = [f"eval/held_out/functional{greedy}"]
    rows = sorted((row for row in run.rows if row.get("phase") == "eval"), key=lambda row: row["iteration"])
    found = [(row["iteration"], [row[key] for key in keys if row.get(key) is not None]) for row in rows]
    return [(made, fmean(splits)) for made, splits in found if splits]


def during_figure(
    title: str,
    key: str,
    rows: Mapping[str, Mapping[int, RunMetrics]],
    labels: Mapping[str, str],
    panels: Mapping[str, Sequence[str]],
) -> Figure | None:
    """Draws held-out success against the number of updates. Each row has a line for its mean over seeds, and a band
    from its lowest to its highest seed. Returns None if no run can be drawn.

    Args:
        key: prefix of the ids of SVG elements, which makes them unique on the page.
        rows: row -> seed -> run. A run is left out if it was not evaluated before training, or was evaluated only once.
        labels: name of a row -> its label in the drawing.
        panels: title of a panel -> names of its rows. If it is empty, all rows are drawn in one panel without a title.
    """
    found = {name: [by_update(run) for run in runs.values()] for name, runs in rows.items()}
    drawn = {name: [one for one in seeds if len(one) > 1 and one[0][0] == 0] for name, seeds in found.items()}
    drawn = {name: seeds for name, seeds in drawn.items() if seeds}
    named = panels or {"": tuple(drawn)}
    drawn = {name: seeds for name, seeds in drawn.items() if any(name in among for among in named.values())}
    bands = {name: band(seeds) for name, seeds in drawn.items()}
    kept = {head: [row for row in among if row in bands] for head, among in named.items()}
    shown = [Panel({row: bands[row] for row in among}, "updates", head) for head, among in kept.items() if among]
    if not shown:
        return None
    looked = sorted({made for seeds in drawn.values() for one in seeds for made, _ in one})
    ends = "; ".join(panel.ends(labels, "updates") for panel in shown)
    alt = (
        f"{title}. Where the lines end: {ends}. "
        f"Success was measured after {', '.join(f'{at:g}' for at in looked)} updates; the lines between are straight."
    )
    if any(len(seeds) > 1 for seeds in drawn.values()):
        alt += " Bands go from the lowest to the highest seed."
    return lines_figure(title, key, shown, labels, alt)
