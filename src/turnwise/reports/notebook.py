"""Provides functions for the notebooks: entries of a paper, finished runs, training curves, and trees as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise.experiments.command_line import ask
from turnwise.experiments.sweep_file import find_sweep, sweep_names
from turnwise.reports.entries import Entry, read_entry
from turnwise.reports.metric_labels import words
from turnwise.reports.read_run import ReportedRun, read_run
from turnwise.reports.sentences import signed
from turnwise.reports.svg import SERIES, Figure, canvas, label, standalone, to_svg, whole_iterations
from turnwise.reports.tables import Table, to_markdown
from turnwise.reports.tree_views import Branch, ShownTurn, TreeView
from turnwise.runs.archive import RunPath
from turnwise.runs.keep_results import finished


@dataclass(frozen=True, slots=True)
class Text:
    """Markdown that a notebook displays."""

    markdown: str

    def _repr_markdown_(self) -> str:
        return self.markdown


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure that a notebook displays."""

    figure: Figure

    def _repr_svg_(self) -> str:
        return standalone(self.figure)


def shown(*tables: Table) -> Text:
    """Returns tables and their notes in a form that a notebook displays."""
    return Text(to_markdown(tables))


def drawn(figure: Figure | None) -> Drawing | Text:
    """Returns a figure for a notebook. For None, the notebook displays that no run has logged the metric."""
    return Text("*No run has logged this metric yet.*") if figure is None else Drawing(figure)


def paper_entries(
    paper: str,
    conf: Path,
    places: Sequence[Path],
    scale: str = "tiny",
    gates: Mapping[str, Any] | None = None,
) -> list[Entry]:
    """Returns an entry for every table and figure of a paper, with the existing runs and the decisions on the paper's
    claims (:func:`turnwise.reports.entries.read_entry`).

    Args:
        places: folders that contain runs. The runs of a row are read from the first folder that has a run of the row.

    Raises:
        InputError: no sweep file belongs to ``paper``.
    """
    papers = {name: find_sweep(name, conf).paper for name in sweep_names(conf)}
    names = [name for name, of in papers.items() if of == paper]
    if not names:
        raise InputError(
            f"paper {paper!r}: this paper is unknown; conf/sweep/ has {', '.join(sorted(set(papers.values())))}"
        )
    asked = [ask([f"sweep={name}", f"scale={scale}"], conf) for name in names]
    return [read_entry(one, places, gates) for one in asked]


def runs_under(places: Sequence[Path], name: str) -> dict[str, ReportedRun]:
    """Returns path (such as ``pivotrl/tab4/full/seed0``) -> finished run, for the runs in the subfolder ``name`` of
    each folder in ``places``. If several folders have a run at a path, the first folder counts.
    """
    found: dict[str, Path] = {}
    for place in map(RunPath, places):
        for folder in finished([place / name]):
            found.setdefault(folder.relative_to(place).as_posix(), folder)
    return {path: read_run(folder) for path, folder in found.items()}


def curves(runs: Mapping[str, ReportedRun], metric: str, title: str) -> Figure | None:
    """Draws a metric of ``metrics.jsonl``, with a line for each run. Returns None if no run logged it twice or more."""
    lines = {name: run.series(metric) for name, run in runs.items()}
    lines = {name: points for name, points in lines.items() if len(points[0]) > 1}
    if not lines:
        return None
    with canvas(7.4, 3.1) as figure:
        axes = figure.add_subplot()
        for number, (name, (x, y)) in enumerate(lines.items()):
            # the line style changes after all colours have been used once
            style = ("-", "--", ":", "-.")[number // len(SERIES) % 4]
            axes.plot(x, y, style, color=SERIES[number % len(SERIES)], label=label(name))
        axes.set_ylabel(words(metric))
        whole_iterations(axes)
        axes.legend(loc="best")
        ends = "; ".join(f"{name} from {y[0]:.3g} to {y[-1]:.3g}" for name, (_, y) in lines.items())
        alt = f"{title}: {ends}."
        return Figure(title, to_svg(figure, "curves", alt), alt)


def tree_lines(view: TreeView) -> list[str]:
    """Returns a rollout tree as text: a line for each turn with its reward and advantage, indented by depth."""
    head = f"{view.title}: {view.samples} samples"
    lines = [head + (f", mean reward {view.mean:.2f}" if view.mean is not None else "")]
    if view.expert is not None:
        lines.append(f"expert: {_one_line(view.expert)}")
    for branch in view.branches:
        lines += _branch(branch, 0)
    return lines


def _branch(branch: Branch, depth: int) -> Iterator[str]:
    for step in branch.steps:
        yield "  " * depth + f"- {_one_line(step.text)}{_facts(step)}"
        depth += 1
    for further in branch.branches:
        yield from _branch(further, depth)


def _facts(step: ShownTurn) -> str:
    facts = [f"{step.times} times"] if step.times > 1 else []
    facts += [f"reward {step.reward:.2f}"] if step.reward is not None else []
    facts += [f"advantage {step.advantage:+.2f}"] if step.advantage is not None else []
    facts += ["episode ends"] if step.done else []
    return f"  [{', '.join(facts)}]" if facts else ""


def _one_line(text: str, limit: int = 100) -> str:
    line = " ".join(text.split()) or "(empty)"
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def changes(runs: Mapping[str, ReportedRun]) -> Table:
    """Returns a table of the change of held-out success and of the out-of-domain score, in percentage points."""
    rows = [
        [name, signed(run.result.in_domain.delta), signed(run.result.ood.mean_change)]
        for name, run in runs.items()
        if run.result is not None
    ]
    return Table("Change since the base policy, points", ["run", "held out", "out of domain"], rows)


def judged(runs: Mapping[str, ReportedRun]) -> Table:
    """Returns a table of each run's questions to the judge: asked, failed, and answered from the cache."""
    counts = {name: run.result.judge for name, run in runs.items() if run.result is not None and run.result.judge}
    keys = ("asked", "failed", "cached")
    rows = [[name, *(f"{judge.get(key, 0):,.0f}" for key in keys)] for name, judge in counts.items()]
    return Table("Questions to the judge", ["run", "asked", "failed", "from the cache"], rows)
