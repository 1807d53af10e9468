"""Compares the held-out success of methods seed by seed, at each value of a numeric setting of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from turnwise.evaluation.stats import mean_interval
from turnwise.reports.curves_over_setting import Seeds, by_value
from turnwise.reports.find_runs import FinishedRuns
from turnwise.reports.tables import Table, estimate_text


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
