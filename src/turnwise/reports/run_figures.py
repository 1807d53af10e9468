"""Draws the figures of a run's report. A function returns None if the run has no data for its figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from turnwise.reports.metric_labels import success_keys, words
from turnwise.reports.read_run import Profile, ReportedRun
from turnwise.reports.sentences import duration, interval, short, signed
from turnwise.reports.svg import DOWN, INK, MUTED, NARROW, SERIES, UP, Figure, canvas, label, to_svg, whole_iterations
from turnwise.runs.result_file import OutOfDomain

DIAGNOSTICS = (
    *("train/kl_ref", "train/entropy", "train/repeat_rate", "train/grad_norm", "train/clip_fraction"),
    *("train/effective_groups", "train/loss", "rollout/turns", "rollout/tokens_per_s"),
)


def run_figures(run: ReportedRun) -> list[Figure]:
    """Returns every figure for which the run has data, in the order of the report."""
    figures = [success(run), reward(run), diagnostics(run)]
    if run.profile is not None:
        figures += [pivot_yield(run.profile, _threshold(run.config)), state_means(run.profile)]
    if run.result is not None:
        figures += [ood_changes(run.result.ood), seconds(run.result.seconds, run.result.wall_seconds)]
    return [figure for figure in figures if figure is not None]


_REPLIES = {"eval/held_out/functional": "accepted replies", "eval/held_out/strict": "demonstrated replies"}


def success(run: ReportedRun) -> Figure | None:
    """Draws held-out success during training, with a line for each split. For a run on dialogues, the lines show the
    percentage of accepted replies and the percentage of replies that equal the demonstrated reply.
    """
    keys = success_keys(run.metrics)
    named = keys | {name: key for key, name in _REPLIES.items()}
    lines = {name: run.series(key) for name, key in named.items()}
    lines = {name: points for name, points in lines.items() if len(points[0]) > 1}
    if not lines:
        return None
    with canvas() as figure:
        axes = figure.add_subplot()
        for (split, (x, y)), colour, marker in zip(lines.items(), SERIES, "osD^", strict=False):
            line = axes.plot(x, y, marker=marker, color=colour, label=label(split))
            figure.belongs(split, colour, *line)
            figure.tell_line(axes, x, y, _by_iteration(split, "{:.1f} %"), split)
        axes.set_ylabel("solved, %" if keys else "of the replies, %")
        axes.set_ylim(bottom=0)
        whole_iterations(axes)
        axes.legend(loc="best")
        ends = [f"{split} from {y[0]:.1f} to {y[-1]:.1f} %" for split, (_, y) in lines.items()]
        title = f"Held-out {'success' if keys else 'replies'} during training"
        alt = f"{title}: {'; '.join(ends)}."
        return Figure(title, to_svg(figure, "success", alt), alt)


def reward(run: ReportedRun) -> Figure | None:
    """Draws the mean training reward, with a band of one standard deviation of the rewards within groups."""
    x, mean = run.series("train/reward_mean")
    if len(x) < 2:
        return None
    spread = dict(zip(*run.series("train/reward_std"), strict=True))
    std = np.array([spread.get(i, np.nan) for i in x])
    with canvas() as figure:
        axes = figure.add_subplot()
        if np.isfinite(std).any():
            spread_name = "one standard deviation"
            band = axes.fill_between(x, mean - std, mean + std, color=SERIES[0], alpha=0.18, lw=0, label=spread_name)
            figure.belongs(spread_name, SERIES[0], band)
        figure.belongs("mean", SERIES[0], *axes.plot(x, mean, color=SERIES[0], label="mean"))
        figure.tell_line(axes, x, mean, _by_iteration("mean reward", "{:.3f}"), "mean")
        axes.set_ylabel("reward")
        whole_iterations(axes)
        axes.legend(loc="best")
        alt = f"Training reward from {mean[0]:.2f} to {mean[-1]:.2f} over {len(x)} iterations"
        alt += f"; standard deviation from {std[0]:.2f} to {std[-1]:.2f}." if np.isfinite(std[[0, -1]]).all() else "."
        return Figure("Reward during training", to_svg(figure, "reward", alt), alt)


def diagnostics(run: ReportedRun) -> Figure | None:
    """Draws a panel for each training diagnostic, such as KL, entropy and repeated actions."""
    logged = {words(key): run.series(key) for key in DIAGNOSTICS if len(run.series(key)[0]) > 1}
    drawn = {name: points for name, points in logged.items() if points[1].any()}
    silent = [name for name in logged if name not in drawn]
    if not drawn:
        return None
    ends = [f"{name} {short(y[0])} to {short(y[-1])}" for name, (_, y) in drawn.items()]
    alt = f"First to last iteration: {'; '.join(ends)}." + (f" Always zero: {', '.join(silent)}." if silent else "")
    wide, narrow = _multiples(drawn, 3, alt, "diagnostics"), _multiples(drawn, 1, alt, "diagnostics-narrow")
    return Figure("Diagnostics by iteration", wide, alt, wide=True, narrow=narrow)


def _multiples(drawn: Mapping[str, tuple[np.ndarray, np.ndarray]], most: int, alt: str, key: str) -> str:
    columns = min(most, len(drawn))
    rows = -(-len(drawn) // columns)
    with canvas(10.6 if most > 1 else NARROW, 1.95 * rows) as figure:
        for index, (name, (x, y)) in enumerate(drawn.items(), 1):
            axes = figure.add_subplot(rows, columns, index)
            axes.plot(x, y, color=SERIES[(index - 1) % len(SERIES)])
            figure.tell_line(axes, x, y, _by_iteration(name, "{:.3g}"))
            axes.set_title(name)
            axes.margins(y=0.15)
            whole_iterations(axes)
            axes.set_xlabel("")
        return to_svg(figure, key, alt)


def pivot_yield(profile: Profile, threshold: float | None) -> Figure:
    """Draws the percentage of expert turns that PivotRL's filter keeps, as a function of its threshold lambda. The
    filter keeps a turn if the sampled actions have a reward variance above 0 and a mean reward below lambda.
    """
    means = np.sort(profile.mean[profile.mixed])
    grid = np.linspace(0, 1, 201)
    share = 100 * np.searchsorted(means, grid - 1e-9) / len(profile.mean)
    kept = 100 * profile.kept.mean()
    with canvas() as figure:
        axes = figure.add_subplot()
        axes.plot(grid, share, color=SERIES[1], drawstyle="steps-post")
        figure.tell_line(
            axes, grid[::5], share[::5], lambda at, value: f"{value:.1f} % of turns kept at lambda {at:.3g}"
        )
        if threshold is not None and 0 <= threshold <= 1:
            axes.axvline(threshold, color=MUTED, lw=1.1, ls=(0, (4, 3)))
            axes.plot([threshold], [kept], "o", color=INK)
            right = threshold > 0.6
            axes.annotate(
                f"kept {kept:.1f} %", (threshold, kept), (-7 if right else 7, -14), textcoords="offset points",
                ha="right" if right else "left", color=INK,
            )  # fmt: skip
        axes.set(xlabel="lambda (upper bound on a state's mean reward)", ylabel="turns kept, %", xlim=(0, 1.02))
        axes.set_ylim(0, max(share[-1] * 1.15, 1))
        alt = (
            f"Pivot yield: {profile.kept.sum()} of {len(profile.mean)} expert turns kept ({kept:.1f} %)"
            f"{f' at lambda {threshold:g}' if threshold is not None else ''}; {share[-1]:.1f} % have different rewards."
        )
        return Figure("Pivot yield against lambda", to_svg(figure, "yield", alt), alt)


def state_means(profile: Profile) -> Figure:
    """Draws a histogram of expert turns by mean reward of their sampled actions. Turns with equal rewards are grey."""
    edges = np.linspace(-0.5, profile.samples + 0.5, profile.samples + 2) / profile.samples
    width = 0.86 / profile.samples
    mixed, flat = (np.histogram(profile.mean[m], edges)[0] for m in (profile.mixed, ~profile.mixed))
    at = np.linspace(0, 1, profile.samples + 1)
    silent = 100 * (~profile.mixed).mean()
    with canvas() as figure:
        axes = figure.add_subplot()
        for name, counts, below, colour in (
            (f"equal rewards ({silent:.0f} %)", flat, np.zeros_like(flat), MUTED),
            (f"different rewards ({100 - silent:.0f} %)", mixed, flat, SERIES[2]),
        ):
            bars = axes.bar(
                at, counts, width, bottom=below, color=colour, alpha=0.45 if colour == MUTED else None, label=name
            )
            figure.belongs(name, colour, *bars)
            for x, count, start in zip(at, counts, below, strict=True):
                if count:
                    figure.tell(axes, x, start + count / 2, f"{name}: {count} turns at a mean of {x:.3g}", name)
        axes.set(xlabel=f"mean reward of {profile.samples} sampled actions", ylabel="expert turns")
        axes.legend(loc="best")
        alt = f"Mean reward of {len(profile.mean)} profiled turns: {silent:.1f} % give no signal (equal rewards)."
        return Figure("Mean rewards of the profiled turns", to_svg(figure, "means", alt), alt)


def ood_changes(ood: OutOfDomain) -> Figure | None:
    """Draws the change of each out-of-domain score through training with its interval, and the mean change."""
    rows = [
        (suite, change, ood.change_ci95.get(suite)) for suite in ood.suites if (change := ood.change(suite)) is not None
    ]
    if not rows:
        return None
    if ood.mean_change is not None:
        rows.append(("mean", ood.mean_change, ood.mean_change_ci95))
    with canvas(5.2, 0.9 + 0.27 * len(rows)) as figure:
        axes = figure.add_subplot()
        axes.axvline(0, color=MUTED, lw=1.1)
        for y, (name, change, bounds) in enumerate(reversed(rows)):
            clear = bounds is not None and (bounds[0] > 0 or bounds[1] < 0)
            colour = (UP if change > 0 else DOWN) if clear else SERIES[0]
            if bounds is not None:
                axes.plot(bounds, [y, y], color=colour, lw=1.6, solid_capstyle="round")
            axes.plot([change], [y], "D" if name == "mean" else "o", color=colour)
            figure.tell(axes, change, y, f"{name}: {signed(change)} points{within(bounds)}")
        axes.set_yticks(range(len(rows)), [label(name) for name, *_ in reversed(rows)])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("change, points")
        alt = (
            "Out-of-domain change in points: " + ", ".join(f"{name} {signed(change)}" for name, change, _ in rows) + "."
        )
        return Figure("Change outside the trained domain", to_svg(figure, "ood", alt), alt)


def seconds(phases: Mapping[str, float], whole: float | None = None) -> Figure | None:
    """Draws the time that the run spent in each phase, longest phase first. ``whole`` is the time of all starts of the
    run, which is longer: it also holds what no phase counts, and the phases that earlier starts finished.
    """
    rows = sorted(((phase, s) for phase, s in phases.items() if s > 0), key=lambda row: row[1])
    if not rows:
        return None
    total = sum(s for _, s in rows)
    rest = whole is not None and whole > total
    every = whole if whole is not None and rest else total
    with canvas(5.2, 0.75 + 0.3 * len(rows)) as figure:
        axes = figure.add_subplot()
        axes.barh(range(len(rows)), [s for _, s in rows], 0.62, color=SERIES[3])
        for y, (_, s) in enumerate(rows):
            axes.annotate(f"{duration(s)} ({s / every:.0%})", (s, y), (5, 0), textcoords="offset points", va="center")
            figure.tell(axes, s / 2, y, f"{rows[y][0]}: {duration(s)}, {s / every:.1%}")
        axes.set_yticks(range(len(rows)), [label(phase) for phase, _ in rows])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set_xlim(0, rows[-1][1] * 1.42)
        axes.set_xlabel("seconds")
        alt = f"Time by phase, {duration(every)} in all: " + ", ".join(f"{p} {duration(s)}" for p, s in rows[::-1])
        alt += (
            f"; {duration(every - total)} in no phase here, or in phases that an earlier start finished."
            if rest
            else "."
        )
        return Figure("Time by phase", to_svg(figure, "seconds", alt), alt)


def _by_iteration(name: str, form: str) -> Callable[[float, float], str]:
    return lambda at, value: f"{name}: {form.format(value)} at iteration {at:g}"


def within(bounds: tuple[float, float] | None) -> str:
    """Returns an interval as text that continues a sentence, or an empty text for None."""
    return f", 95 % {interval(bounds)}" if bounds else ""


def _threshold(config: Mapping[str, object]) -> float | None:
    """Returns the threshold lambda of PivotRL's filter (``states.lambda_diff``) from a configuration, or None."""
    states = config.get("states")
    value = states.get("lambda_diff") if isinstance(states, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
