"""Draws the figures of a run and of an entry (a table or figure of a paper) as inline SVG.

Text and axes take the colour of the surrounding page, and the series have colours that are visible on a light and on a
dark page. matplotlib is imported by the functions that draw, because importing it takes longer than most reports.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from statistics import fmean
from textwrap import wrap
from typing import Any

import numpy as np

from turnwise.runs.result_file import OutOfDomain
from turnwise_study.run_files import Profile, ReportedRun
from turnwise_study.runs import RunMetrics, judged_on_dialogues, success_keys, words
from turnwise_study.tables import duration, interval, plain, short

INK = "#010101"  # stands for the text colour of the page
MUTED, GRID = "#7d8590", "#8b949e"
SERIES = ("#3b82d0", "#cf6f24", "#1f9d88", "#9466cf", "#cf4d86", "#8c9220")
UP, DOWN = "#2f9e5b", "#d3524c"
STROKES = ("-", "--", ":", "-.")  # a style is used with all colours before the next style is used
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text is kept as text, so that it can be searched and uses the page's font
    "text.parse_math": False,  # names may contain dollar signs
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.35,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    **dict.fromkeys(("grid.color", "axes.edgecolor", "xtick.color", "ytick.color"), GRID),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor", "legend.labelcolor"), MUTED),
    **dict.fromkeys(("text.color", "axes.titlecolor"), INK),
}
DIAGNOSTICS = (
    *("train/kl_ref", "train/entropy", "train/repeat_rate", "train/grad_norm", "train/clip_fraction"),
    *("train/effective_groups", "train/loss", "rollout/turns", "rollout/tokens_per_s"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing as inline SVG, with an alternative text, and a legend (``key``) for where it stands without a page."""

    title: str
    svg: str
    alt: str
    wide: bool = False
    key: str = ""

    def _repr_svg_(self) -> str:  # how a notebook displays it
        return standalone(self)


@contextmanager
def canvas(width: float = 5.2, height: float = 2.9) -> Iterator[Any]:
    """Yields a matplotlib figure in the report's style. Sizes are in inches; one inch is 72 page units."""
    from matplotlib import figure, rc_context

    with rc_context(STYLE):
        yield figure.Figure(figsize=(width, height))


def to_svg(figure: Any, key: str, alt: str) -> str:
    """The drawing as an ``<svg>`` element. All its ids begin with ``key``, because a page holds several."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": key}):
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    for before, after in (('id="', f'id="{key}-'), ('href="#', f'href="#{key}-'), ("url(#", f"url(#{key}-")):
        body = body.replace(before, after)
    width, height = figure.get_size_inches() * 72
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(alt)}">'
    return head + body.replace(INK, "currentColor").strip()


def standalone(figure: Figure) -> str:
    """A separate SVG file on white, with the drawing's title above it and its ``key`` below it."""
    head, rest = figure.svg.split(">", 1)
    width, height = (int(size) for size in re.findall(r'viewBox="0 0 (\d+) (\d+)"', head)[0])
    above, below = wrap(figure.title, width // 8), wrap(figure.key, width // 6)
    top, bottom = 18 * len(above) + 8, 15 * len(below) + (8 if below else 0)
    head = head.replace(f'viewBox="0 0 {width} {height}"', f'viewBox="0 {-top} {width} {height + top + bottom}"')
    lines = [(line, 18 * n + 16 - top, 13.5) for n, line in enumerate(above)]
    lines += [(line, height + 15 * n + 14, 10.5) for n, line in enumerate(below)]
    text = "".join(f'<text x="6" y="{y}" font-size="{size}">{escape(line)}</text>' for line, y, size in lines)
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    style = "svg{color:#1b1f24;background:#ffffff;font-family:sans-serif}"
    return f"{head} {spaces}><style>{style}</style>{text}{rest}\n"


def label(text: str, limit: int = 28) -> str:
    return "\n".join(wrap(text, limit)) or text


def whole_numbers(axes: Any, name: str = "iteration") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.set_xlabel(name)


def run_figures(run: ReportedRun) -> list[Figure]:
    """Every figure for which the run has data, in the order of the report."""
    figures = [success(run), reward(run), diagnostics(run)]
    if run.profile is not None:
        states = run.config.get("states")
        limit = states.get("lambda_diff") if isinstance(states, Mapping) else None
        number = float(limit) if isinstance(limit, int | float) else None
        figures += [pivot_yield(run.profile, number), state_means(run.profile)]
    if run.result is not None:
        figures += [ood_changes(run.result.ood), seconds(run.result.seconds, run.result.wall_seconds)]
    return [figure for figure in figures if figure is not None]


def curves(lines: Mapping[str, Any], title: str, key: str, y_label: str, marker: str = "") -> Figure | None:
    """Draws a line for each series (iterations, values) with two points or more. Returns None if there is none."""
    drawn = {name: points for name, points in lines.items() if len(points[0]) > 1}
    if not drawn:
        return None
    with canvas() as figure:
        axes = figure.add_subplot()
        for number, (name, (x, y)) in enumerate(drawn.items()):
            stroke = STROKES[number // len(SERIES) % len(STROKES)]
            axes.plot(x, y, stroke, marker=marker, color=SERIES[number % len(SERIES)], label=label(name))
        axes.set_ylabel(y_label)
        whole_numbers(axes)
        axes.legend(loc="best")
        ends = "; ".join(f"{name} from {y[0]:.3g} to {y[-1]:.3g}" for name, (_, y) in drawn.items())
        return Figure(title, to_svg(figure, key, alt := f"{title}: {ends}."), alt)


def success(run: ReportedRun) -> Figure | None:
    """Draws held-out success during training, in percent, with a line for each split or for each measure of replies."""
    replies = {"accepted replies": "eval/held_out/functional", "demonstrated replies": "eval/held_out/strict"}
    keys = success_keys(run.metrics)
    lines = {name: run.series(key) for name, key in (keys | replies).items()}
    return curves(lines, "Held-out success during training", "success", "%", marker="o")


def reward(run: ReportedRun) -> Figure | None:
    """Draws the mean training reward, with a band of one standard deviation of the rewards within groups."""
    x, mean = run.series("train/reward_mean")
    if len(x) < 2:
        return None
    spread = dict(zip(*run.series("train/reward_std"), strict=True))
    std = np.array([spread.get(i, np.nan) for i in x])
    with canvas() as figure:
        axes = figure.add_subplot()
        axes.fill_between(x, mean - std, mean + std, color=SERIES[0], alpha=0.18, lw=0, label="standard deviation")
        axes.plot(x, mean, color=SERIES[0], label="mean")
        axes.set_ylabel("reward")
        whole_numbers(axes)
        axes.legend(loc="best")
        alt = f"Training reward from {mean[0]:.2f} to {mean[-1]:.2f} over {len(x)} iterations."
        return Figure("Reward during training", to_svg(figure, "reward", alt), alt)


def diagnostics(run: ReportedRun) -> Figure | None:
    """Draws a panel for each training diagnostic that is not always zero."""
    logged = {words(key): run.series(key) for key in DIAGNOSTICS}
    drawn = {name: (x, y) for name, (x, y) in logged.items() if len(x) > 1 and y.any()}
    if not drawn:
        return None
    rows = -(-len(drawn) // 3)
    with canvas(10.6, 1.95 * rows) as figure:
        for index, (name, (x, y)) in enumerate(drawn.items(), 1):
            axes = figure.add_subplot(rows, min(3, len(drawn)), index, title=name)
            axes.plot(x, y, color=SERIES[(index - 1) % len(SERIES)])
            axes.margins(y=0.15)
            whole_numbers(axes, "")
        alt = f"First to last iteration: {'; '.join(f'{k} {short(y[0])} to {short(y[-1])}' for k, (_, y) in drawn.items())}."
        return Figure("Diagnostics by iteration", to_svg(figure, "diagnostics", alt), alt, wide=True)


def pivot_yield(profile: Profile, threshold: float | None) -> Figure:
    """Draws the percentage of expert turns that PivotRL's filter keeps, as a function of its threshold lambda: those
    whose sampled actions have a reward variance above 0 and a mean reward below lambda.
    """
    means, at = np.sort(profile.mean[profile.mixed]), np.linspace(0, 1, 201)
    share = 100 * np.searchsorted(means, at - 1e-9) / len(profile.mean)
    kept = 100 * profile.kept.mean()
    with canvas() as figure:
        axes = figure.add_subplot()
        axes.plot(at, share, color=SERIES[1], drawstyle="steps-post")
        if threshold is not None and 0 <= threshold <= 1:
            axes.axvline(threshold, color=MUTED, lw=1.1, ls="--")
            axes.plot([threshold], [kept], "o", color=INK)
        axes.set(xlabel="lambda (upper bound on a state's mean reward)", ylabel="turns kept, %", xlim=(0, 1.02))
        axes.set_ylim(0, max(share[-1] * 1.15, 1))
        chosen = f" at lambda {threshold:g}" if threshold is not None else ""
        alt = f"{profile.kept.sum()} of {len(profile.mean)} expert turns kept ({kept:.1f} %){chosen}."
        return Figure("Pivot yield against lambda", to_svg(figure, "yield", alt), alt)


def state_means(profile: Profile) -> Figure:
    """Draws a histogram of expert turns by mean reward of their sampled actions. Turns with equal rewards are grey."""
    edges = np.linspace(-0.5, profile.samples + 0.5, profile.samples + 2) / profile.samples
    mixed, equal = (np.histogram(profile.mean[m], edges)[0] for m in (profile.mixed, ~profile.mixed))
    at, silent = np.linspace(0, 1, profile.samples + 1), 100 * (~profile.mixed).mean()
    with canvas() as figure:
        axes = figure.add_subplot()
        axes.bar(at, equal, 0.86 / profile.samples, color=GRID, label=f"equal rewards ({silent:.0f} %)")
        name = f"different rewards ({100 - silent:.0f} %)"
        axes.bar(at, mixed, 0.86 / profile.samples, bottom=equal, color=SERIES[2], label=name)
        axes.set(xlabel=f"mean reward of {profile.samples} sampled actions", ylabel="expert turns")
        axes.legend(loc="best")
        alt = f"Mean reward of {len(profile.mean)} profiled turns: {silent:.1f} % give no signal (equal rewards)."
        return Figure("Mean rewards of the profiled turns", to_svg(figure, "means", alt), alt)


def ood_changes(ood: OutOfDomain) -> Figure | None:
    """Draws the change of each out-of-domain score through training with its interval, and the mean change."""
    changes = {suite: (ood.change(suite), ood.change_ci95.get(suite)) for suite in ood.suites}
    changes["mean"] = (ood.mean_change, ood.mean_change_ci95)
    points = [Point(name, value, *(bounds or ())) for name, (value, bounds) in changes.items() if value is not None]
    alone = Panel("", points, "change, points", zero=True)
    return dots("Change outside the trained domain", "ood", [alone]) if points else None


def seconds(phases: Mapping[str, float], whole: float | None = None) -> Figure | None:
    """Draws the time of each phase. ``whole`` is the time of all starts of the run, which may be longer."""
    rows = sorted(((phase, s) for phase, s in phases.items() if s > 0), key=lambda row: row[1])
    if not rows:
        return None
    every = max(whole or 0.0, sum(s for _, s in rows))
    with canvas(5.2, 0.75 + 0.3 * len(rows)) as figure:
        axes = figure.add_subplot()
        bars = axes.barh([phase for phase, _ in rows], [s for _, s in rows], 0.62, color=SERIES[3])
        axes.bar_label(bars, [f"{duration(s)} ({s / every:.0%})" for _, s in rows], padding=5)
        axes.set(xlim=(0, rows[-1][1] * 1.42), xlabel="seconds")
        alt = f"Time by phase, {duration(every)} in all: {', '.join(f'{p} {duration(s)}' for p, s in rows[::-1])}."
        return Figure("Time by phase", to_svg(figure, "seconds", alt), alt)


@dataclass(frozen=True, slots=True)
class Point:
    """The number of a row, with the ends of its interval and the value of each seed."""

    row: str
    value: float
    low: float | None = None
    high: float | None = None
    seeds: Mapping[int, float] = field(default_factory=dict)
    series: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of a dot plot, with its own horizontal scale."""

    title: str
    points: Sequence[Point]
    axis: str = ""
    zero: bool = False  # whether a line is drawn at zero


def dots(title: str, key: str, panels: Sequence[Panel], legend: str = "", rows: Sequence[str] = ()) -> Figure:
    """Draws numbers as dots with their intervals, faint dots for single seeds, and panels side by side. ``rows`` gives
    the order from top to bottom (default: that of the points).
    """
    names = list(dict.fromkeys([*rows, *(point.row for panel in panels for point in panel.points)]))
    height = 0.17 * max(label(name).count("\n") + 1 for name in names) + 0.15
    with canvas(5.2 if len(panels) == 1 else 4.2 + 3.4 * (len(panels) - 1), 1.2 + height * len(names)) as figure:
        first: Any = None
        for number, panel in enumerate(panels):
            axes = first = figure.add_subplot(1, len(panels), number + 1, sharey=first, title=panel.title)
            series = list(dict.fromkeys(point.series for point in panel.points))
            for point in panel.points:
                colour, y = SERIES[(number + series.index(point.series)) % len(SERIES)], names.index(point.row)
                axes.plot(list(point.seeds.values()), [y] * len(point.seeds), "o", color=colour, alpha=0.35, ms=3.5)
                if point.low is not None and point.high is not None:
                    axes.plot([point.low, point.high], [y, y], color=colour, lw=1.8)
                axes.plot([point.value], [y], "oDs^vP"[series.index(point.series) % 6], color=colour)
            if len(series) > 1:
                handles = [
                    axes.plot([], [], "oDs^vP"[n % 6], color=SERIES[(number + n) % 6])[0] for n in range(len(series))
                ]
                axes.legend(handles, series, loc="best", fontsize=8.5)
            if panel.zero:
                axes.axvline(0, color=MUTED, lw=1.1)
            _limit(axes, panel.points)
            axes.set_xlabel(label(panel.axis, 36))
            axes.tick_params(axis="y", length=0, labelleft=number == 0)
            axes.set_ylim(len(names) - 0.4, -0.6)
        first.set_yticks(range(len(names)), [label(name) for name in names])
        numbers = (f"{p.row} {plain(p.value)} {_bounds(p)}".strip() for p in panels[0].points)
        alt = f"{title}: {', '.join(numbers)}."
        return Figure(title, to_svg(figure, key, alt), alt, wide=len(panels) > 1, key=legend)


def _bounds(point: Point) -> str:
    return "" if point.low is None or point.high is None else interval((point.low, point.high), plain)


def _limit(axes: Any, points: Sequence[Point]) -> None:
    """Cuts an interval that is far longer than the others, because it would push the points of all rows together."""
    values = [value for point in points for value in (point.value, *point.seeds.values())]
    lengths = sorted(point.high - point.low for point in points if point.low is not None and point.high is not None)
    room = max(max(values) - min(values), lengths[len(lengths) // 2]) if lengths else 0.0
    if room > 0:
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, min(values) - room), min(high, max(values) + room))


def by_update(run: RunMetrics) -> list[tuple[float, float]]:
    """The evaluations of a run in the order of training, as pairs (number of updates, success): the percentage of
    solved held-out tasks as a mean over splits, or of accepted replies, in the decoding mode of the main result.
    """
    greedy = "_greedy" if getattr(run.result.in_domain, "decoding", None) == "greedy" else ""
    keys = [f"eval/{split}/success{greedy}" for split in ("seen", "unseen")]
    if judged_on_dialogues(run.result):
        keys = [f"eval/held_out/functional{greedy}"]
    rows = sorted((row for row in run.rows if row.get("phase") == "eval"), key=lambda row: row["iteration"])
    splits = [(row["iteration"], [row[key] for key in keys if row.get(key) is not None]) for row in rows]
    return [(updates, fmean(values)) for updates, values in splits if values]


def trade_off_figure(
    title: str, key: str, rows: Mapping[str, Mapping[int, RunMetrics]], labels: Mapping[str, str]
) -> Figure | None:
    """Draws held-out success against the divergence from the base model (``eval/general/kl``). Each seed of a row has a
    line through the evaluations of its run; a ring marks the end.
    """
    ends = []
    with canvas(9.4, 3.8) as figure:
        axes = figure.add_subplot(xlabel="divergence from the base model on general questions, nats a token")
        axes.set_ylabel("held-out success, %")
        for number, (name, runs) in enumerate(rows.items()):
            colour = SERIES[number % len(SERIES)]
            for place, run in enumerate(runs.values()):
                moved = {row["iteration"]: row.get("eval/general/kl") for row in run.rows if row.get("phase") == "eval"}
                points = [(moved[at], success) for at, success in by_update(run) if moved.get(at) is not None]
                if not points:
                    continue
                x, y = zip(*points, strict=True)
                axes.plot(x, y, color=colour, marker="o", ms=3, label=None if place else label(labels[name], 40))
                axes.plot(x[-1:], y[-1:], color=colour, marker="o", ms=9, mfc="none")
                ends.append(f"{labels[name]} {y[-1]:.1f} % at {x[-1]:.2f} nats")
        if not ends:
            return None
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
        alt = f"{title}. Where the lines end: {'; '.join(ends)}."
        return Figure(title, to_svg(figure, key, alt), alt, wide=True)


def during_figure(
    title: str, key: str, rows: Mapping[str, Mapping[int, RunMetrics]], labels: Mapping[str, str],
    panels: Mapping[str, Sequence[str]],
) -> Figure | None:  # fmt: skip
    """Draws held-out success against the number of updates, one panel below another. Each row has a line for its mean
    over seeds and a band from its lowest to its highest seed. Runs without an evaluation before training are left out.
    """
    lines: dict[str, list[dict[float, float]]] = {}
    for name, runs in rows.items():
        points = [dict(by_update(run)) for run in runs.values()]
        if points := [one for one in points if len(one) > 1 and 0 in one]:
            lines[name] = points
    shown = {head: [name for name in among if name in lines] for head, among in (panels or {"": tuple(lines)}).items()}
    shown = {head: among for head, among in shown.items() if among}
    if not shown:
        return None
    ends = []
    with canvas(9.4, 3.4 * len(shown)) as figure:
        for place, (head, among) in enumerate(shown.items(), 1):
            axes = figure.add_subplot(len(shown), 1, place, title=head, ylabel="held-out success, %")
            for number, name in enumerate(among):
                at = sorted(set.intersection(*map(set, lines[name])))
                values = np.array([[one[x] for x in at] for one in lines[name]])
                colour, stroke = SERIES[number % len(SERIES)], STROKES[number // len(SERIES) % len(STROKES)]
                axes.plot(at, values.mean(0), stroke, color=colour, marker="o", ms=3, label=label(labels[name], 40))
                axes.fill_between(at, values.min(0), values.max(0), color=colour, alpha=0.12, lw=0)
                ends.append(f"{labels[name]} {values.mean(0)[-1]:.1f} % at {at[-1]:g}")
            whole_numbers(axes, "updates")
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
        alt = f"{title}. Where the lines end: {'; '.join(ends)}. Bands go from the lowest to the highest seed."
        return Figure(title, to_svg(figure, key, alt), alt, wide=True)
