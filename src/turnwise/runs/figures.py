"""Draws the figures of a run as inline SVG.

Text and axes take the colour of the surrounding page, and the series have colours that are visible on a light and on a
dark page. matplotlib is imported by the functions that draw, because importing it takes longer than most reports.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from textwrap import fill
from typing import Any

import numpy as np

from turnwise.runs.read_run import Profile, RunFiles

INK = "#010101"  # stands for the text colour of the page
MUTED, GRID = "#7d8590", "#8b949e"
SERIES = ("#3b82d0", "#cf6f24", "#1f9d88", "#9466cf", "#cf4d86", "#8c9220")
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
LABELS = {
    "train/reward_mean": "mean reward",
    "train/reward_std": "spread of rewards in a group",
    "train/kl_ref": "KL to the reference",
    "train/kl_sampler": "KL of trainer and sampler",
    "train/entropy": "entropy",
    "train/repeat_rate": "repeated actions",
    "train/grad_norm": "gradient norm",
    "train/clip_fraction": "clipped tokens",
    "train/effective_groups": "groups with signal",
    "train/loss": "loss",
    "train/nll": "negative log-likelihood",
    "rollout/turns": "turns played so far",
    "rollout/tokens": "tokens sampled so far",
    "rollout/tokens_per_s": "tokens sampled a second",
    "rollout/trajectories": "trajectories played so far",
    "cpu/iteration": "CPU seconds of an iteration",
    "eval/repeat_rate": "repeated actions in evaluations",
}
DIAGNOSTICS = (
    *("train/kl_ref", "train/entropy", "train/repeat_rate", "train/grad_norm", "train/clip_fraction"),
    *("train/effective_groups", "train/loss", "rollout/turns", "rollout/tokens_per_s"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing as inline SVG, which contains its title, with an alternative text."""

    title: str
    svg: str
    alt: str
    wide: bool = False

    def _repr_svg_(self) -> str:  # how a notebook displays it
        return standalone(self)


@contextmanager
def canvas(width: float = 5.2, height: float = 2.9) -> Iterator[Any]:
    """Yields a matplotlib figure in the report's style. Sizes are in inches; one inch is 72 page units."""
    from matplotlib import figure, rc_context

    with rc_context(STYLE):
        yield figure.Figure(figsize=(width, height))


def drawn_figure(figure: Any, title: str, key: str, alt: str, below: str = "") -> Figure:
    """Finishes a drawing with its title above it and the text ``below`` it. All its ids begin with ``key``, because a page
    holds several drawings.
    """
    from matplotlib import rc_context

    width, height = figure.get_size_inches()
    figure.suptitle(fill(title, round(12 * width)), x=0.01, ha="left", fontsize=12)
    if below:
        figure.supxlabel(fill(below, round(13 * width)), x=0.01, ha="left", fontsize=9, color=MUTED)
    buffer = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": key}):
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    for before, after in (('id="', f'id="{key}-'), ('href="#', f'href="#{key}-'), ("url(#", f"url(#{key}-")):
        body = body.replace(before, after)
    head = f'<svg viewBox="0 0 {72 * width:.0f} {72 * height:.0f}" role="img" aria-label="{escape(alt)}">'
    return Figure(title, head + body.replace(INK, "currentColor").strip(), alt, wide=width > 6)


def standalone(figure: Figure) -> str:
    """A separate SVG file, on white."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    style = 'style="color:#1b1f24;background:#ffffff;font-family:sans-serif"'
    return f"{figure.svg.replace('<svg ', f'<svg {spaces} {style} ', 1)}\n"


def label(text: str, limit: int = 28) -> str:
    return fill(text, limit) or text


def whole_numbers(axes: Any, name: str = "iteration") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.set_xlabel(name)


def curves(lines: Mapping[str, Any], title: str, key: str, y_label: str, marker: str = "") -> Figure | None:
    """Draws a line for each series (iterations, values) with two points or more. Returns None if there is none."""
    shown = {name: points for name, points in lines.items() if len(points[0]) > 1}
    if not shown:
        return None
    with canvas() as figure:
        axes = figure.add_subplot(ylabel=y_label)
        for number, (name, (x, y)) in enumerate(shown.items()):
            stroke = STROKES[number // len(SERIES) % len(STROKES)]
            axes.plot(x, y, stroke, marker=marker, color=SERIES[number % len(SERIES)], label=label(name))
        whole_numbers(axes)
        axes.legend(loc="best")
        ends = "; ".join(f"{name} from {y[0]:.3g} to {y[-1]:.3g}" for name, (_, y) in shown.items())
        return drawn_figure(figure, title, key, f"{title}: {ends}.")


# -- the figures of a run's page ---------------------------------------------------------------------------------------


def run_figures(run: RunFiles) -> list[Figure]:
    """Every figure for which the run has data, in the order of the report."""
    figures = [success(run), reward(run), diagnostics(run)]
    if run.profile is not None:
        states = run.config.get("states")
        limit = states.get("lambda_diff") if isinstance(states, Mapping) else None
        figures += [pivot_yield(run.profile, limit), state_means(run.profile)]
    return [figure for figure in figures if figure is not None]


def success_keys(logged: Iterable[str]) -> dict[str, str]:
    """Split -> key of held-out success in ``metrics.jsonl``; greedy keys only if there are no sampled ones."""
    for ending in ("success", "success_greedy"):
        keys = [key for key in sorted(logged) if key.startswith("eval/") and key.endswith(f"/{ending}")]
        if keys:
            return {key.split("/")[1]: key for key in keys}
    return {}


def success(run: RunFiles) -> Figure | None:
    """Draws held-out success during training, in percent, with a line for each split or for each measure of replies."""
    replies = {"accepted replies": "eval/held_out/functional", "demonstrated replies": "eval/held_out/strict"}
    lines = {name: run.series(key) for name, key in (success_keys(run.metrics) | replies).items()}
    return curves(lines, "Held-out success during training", "success", "%", marker="o")


def reward(run: RunFiles) -> Figure | None:
    """Draws the mean training reward, with a band of one standard deviation of the rewards within groups."""
    x, mean = run.series("train/reward_mean")
    if len(x) < 2:
        return None
    spread = dict(zip(*run.series("train/reward_std"), strict=True))
    std = np.array([spread.get(i, np.nan) for i in x])
    with canvas() as figure:
        axes = figure.add_subplot(ylabel="reward")
        axes.fill_between(x, mean - std, mean + std, color=SERIES[0], alpha=0.18, lw=0, label="standard deviation")
        axes.plot(x, mean, color=SERIES[0], label="mean")
        whole_numbers(axes)
        axes.legend(loc="best")
        alt = f"Training reward from {mean[0]:.2f} to {mean[-1]:.2f} over {len(x)} iterations."
        return drawn_figure(figure, "Reward during training", "reward", alt)


def diagnostics(run: RunFiles) -> Figure | None:
    """Draws a panel for each training diagnostic that is not always zero."""
    logged = {LABELS[key]: run.series(key) for key in DIAGNOSTICS}
    shown = {name: (x, y) for name, (x, y) in logged.items() if len(x) > 1 and y.any()}
    if not shown:
        return None
    rows = -(-len(shown) // 3)
    with canvas(10.6, 1.95 * rows + 0.3) as figure:
        for index, (name, (x, y)) in enumerate(shown.items()):
            axes = figure.add_subplot(rows, min(3, len(shown)), index + 1, title=name)
            axes.plot(x, y, color=SERIES[index % len(SERIES)])
            axes.margins(y=0.15)
            whole_numbers(axes, "")
        ends = "; ".join(f"{name} {y[0]:.3g} to {y[-1]:.3g}" for name, (_, y) in shown.items())
        return drawn_figure(figure, "Diagnostics by iteration", "diagnostics", f"First to last iteration: {ends}.")


def pivot_yield(profile: Profile, threshold: float | None) -> Figure:
    """Draws the percentage of expert turns that PivotRL's filter keeps, as a function of its threshold lambda: those
    whose sampled actions have a reward variance above 0 and a mean reward below lambda.
    """
    means, at = np.sort(profile.mean[profile.mixed]), np.linspace(0, 1, 201)
    share = 100 * np.searchsorted(means, at - 1e-9) / len(profile.mean)
    kept_share = 100 * profile.kept.mean()
    with canvas() as figure:
        axes = figure.add_subplot(xlabel="lambda (upper bound on a state's mean reward)", ylabel="turns kept, %")
        axes.plot(at, share, color=SERIES[1], drawstyle="steps-post")
        if threshold is not None and 0 <= threshold <= 1:
            axes.axvline(threshold, color=MUTED, lw=1.1, ls="--")
            axes.plot([threshold], [kept_share], "o", color=INK)
        axes.set(xlim=(0, 1.02), ylim=(0, max(share[-1] * 1.15, 1)))
        chosen = f" at lambda {threshold:g}" if threshold is not None else ""
        alt = f"{profile.kept.sum()} of {len(profile.mean)} expert turns kept ({kept_share:.1f} %){chosen}."
        return drawn_figure(figure, "Pivot yield against lambda", "yield", alt)


def state_means(profile: Profile) -> Figure:
    """Draws a histogram of expert turns by mean reward of their sampled actions. Turns with equal rewards are grey."""
    edges = np.linspace(-0.5, profile.samples + 0.5, profile.samples + 2) / profile.samples
    mixed, equal = (np.histogram(profile.mean[m], edges)[0] for m in (profile.mixed, ~profile.mixed))
    at, silent, width = np.linspace(0, 1, profile.samples + 1), 100 * (~profile.mixed).mean(), 0.86 / profile.samples
    with canvas() as figure:
        axes = figure.add_subplot(xlabel=f"mean reward of {profile.samples} sampled actions", ylabel="expert turns")
        axes.bar(at, equal, width, color=GRID, label=f"equal rewards ({silent:.0f} %)")
        axes.bar(at, mixed, width, bottom=equal, color=SERIES[2], label=f"different rewards ({100 - silent:.0f} %)")
        axes.legend(loc="best")
        alt = f"Mean reward of {len(profile.mean)} profiled turns: {silent:.1f} % give no signal (equal rewards)."
        return drawn_figure(figure, "Mean rewards of the profiled turns", "means", alt)
