"""Compares the held-out success of methods at each value of a numeric setting of the configuration (``--against``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

from turnwise.errors import InputError
from turnwise.evaluation.stats import Estimate, mean_interval
from turnwise.reports.find_runs import FinishedRuns, RunRow
from turnwise.reports.metric_labels import ACCEPTED, SUCCESS
from turnwise.reports.sentences import all_on_dialogues
from turnwise.reports.svg import SERIES, Figure, canvas, label, to_svg
from turnwise.reports.tables import Table, estimate_text

Points = list[tuple[float, Estimate]]
Seeds = Mapping[int, float]
"""Seed -> held-out success after training, in percent."""


def swept(collection: FinishedRuns, key: str) -> dict[str, Figure]:
    """Draws held-out success after training, in percent, against the setting ``key``, with intervals. Returns one
    figure for each environment and scale, under a name such as ``apibank-tiny``.

    Args:
        key: the dotted name of a setting in ``config.yaml``, such as ``judge.noise``. A method without this setting is
            drawn as a horizontal line.

    Raises:
        InputError: no run has a number for this setting, or all runs have the same number.
    """
    figures = {}
    for index, ((env, scale), rows) in enumerate(collection.sections.items()):
        lines, levels = _lines(rows, key)
        if len({at for points in lines.values() for at, _ in points}) > 1:
            dialogues = all_on_dialogues(result for row in rows for result in row.results.values())
            title = f"{(ACCEPTED if dialogues else SUCCESS).capitalize()}: {env}, {scale}"
            figures[f"{env}-{scale}"] = _drawn(lines, levels, key, title, f"swept-{index}")
    if not figures:
        raise InputError(
            f"--against {key}: the configurations of these runs must contain at least two different numbers under this "
            "key; give other runs, or another key"
        )
    return figures


def by_value(rows: Sequence[RunRow], key: str) -> tuple[dict[str, dict[float, Seeds]], dict[str, Seeds]]:
    """Returns the held-out success of each seed after training as two mappings. The first maps a method and a value of
    the setting ``key`` to the success. The second has the methods that have no number for the setting, and maps each of
    them to its success.

    Raises:
        InputError: a method has two rows with the same value of the setting.
    """
    lines: dict[str, dict[float, Seeds]] = defaultdict(dict)
    levels: dict[str, Seeds] = {}
    for row in rows:
        seeds = row.values("in_domain.after")
        if not seeds:
            continue
        at, name = row.config.get(key), row.first.method
        if isinstance(at, int | float) and not isinstance(at, bool):
            twice = at in lines[name]
            lines[name][float(at)] = seeds
        else:
            twice = name in levels
            levels[name] = seeds
        if twice:
            raise InputError(
                f"--against {key}: several rows of {name} have equal values of this key, or lack it; give fewer folders"
            )
    return dict(lines), levels


def _lines(rows: Sequence[RunRow], key: str) -> tuple[dict[str, Points], dict[str, Estimate]]:
    """Returns method -> points (value of the setting, success), and method -> success without the setting."""
    lines, levels = by_value(rows, key)
    points = {
        name: [(at, mean_interval(list(seeds.values()))) for at, seeds in sorted(found.items())]
        for name, found in lines.items()
    }
    return points, {name: mean_interval(list(seeds.values())) for name, seeds in levels.items()}


def _drawn(lines: dict[str, Points], levels: dict[str, Estimate], key: str, title: str, name: str) -> Figure:
    names = list(dict.fromkeys([*levels, *lines]))
    colours = dict(zip(names, SERIES * len(names), strict=False))
    with canvas() as figure:
        axes = figure.add_subplot()
        for method, level in levels.items():
            axes.axhline(
                level.mean, color=colours[method], ls=(0, (4, 3)), label=label(f"{method}, without the setting")
            )
            if level.low is not None and level.high is not None:
                axes.axhspan(level.low, level.high, color=colours[method], alpha=0.12, lw=0)
        for method, points in lines.items():
            at, means = [x for x, _ in points], [found.mean for _, found in points]
            axes.plot(at, means, marker="o", color=colours[method], label=label(method))
            if all(found.low is not None for _, found in points):
                low, high = [found.low for _, found in points], [found.high for _, found in points]
                axes.fill_between(at, low, high, color=colours[method], alpha=0.12, lw=0)  # type: ignore[arg-type]
        axes.set(xlabel=key, ylabel="solved, %")
        axes.legend(loc="best")
        told = [f"{method} {level.mean:.1f} without the setting" for method, level in levels.items()]
        told += [
            f"{method} {', '.join(f'{y.mean:.1f} at {x:g}' for x, y in points)}" for method, points in lines.items()
        ]
        alt = f"{title}, percent, against {key}: {'; '.join(told)}."
        return Figure(title, to_svg(figure, name, alt), alt)


def differences(collection: FinishedRuns, key: str) -> list[Table]:
    """Returns, for each environment and scale, a table of the differences in held-out success between two methods. A
    row of the table has the difference at every value of the setting ``key``, and the mean difference over all values.

    For the mean over all values, the differences of each seed are averaged first, and the interval is over the seeds.
    The reason is that runs with equal seeds share data and random draws, so only different seeds are independent. A
    method without the setting has the same result at every value.

    Args:
        key: the dotted name of a setting in ``config.yaml``.

    Raises:
        InputError: a method has two rows with the same value of the setting.
    """
    tables = []
    for (env, scale), rows in collection.sections.items():
        swept, level = by_value(rows, key)
        values = sorted({value for found in swept.values() for value in found})
        if len(values) < 2:
            continue
        found = {**swept, **{name: dict.fromkeys(values, seeds) for name, seeds in level.items()}}
        table = Table(
            f"{env}, scale {scale}: points ahead",
            ["", *(f"{key} {value:g}" for value in values), "all"],
            [
                [f"{a} over {b}", *_row([(found[a].get(v, {}), found[b].get(v, {})) for v in values])]
                for a, b in combinations(found, 2)
            ],
            [
                "Each difference is between two runs with the same seed. In the column `all`, the differences of each "
                "seed are averaged first. `+-` is half the 95 % Student's t interval over seeds."
            ],
        )
        tables.append(table)
    return tables


def _row(pairs: Sequence[tuple[Seeds, Seeds]]) -> list[str]:
    differing = [{seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())} for a, b in pairs]
    everywhere = set.intersection(*(set(found) for found in differing))
    means = [sum(found[seed] for found in differing) / len(differing) for seed in sorted(everywhere)]
    every = [*(list(found.values()) for found in differing), means]
    return [estimate_text(mean_interval(values) if values else None) for values in every]
