"""Counts the groups that a gate cuts and how many of these cuts are correct, and compares that with cutting arbitrary
groups.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from turnwise.evaluation.stats import wilson

Row = dict[str, Any]
Bounded = tuple[float, float | None, float | None]
"""A number and the two ends of its interval, which are None if it has no interval."""


def counts(cut: np.ndarray, uniform: np.ndarray) -> Row:
    """Returns cut, tp, fp, precision and recall of a cut, with Wilson's intervals of the last two, and ``over_base``.

    ``over_base`` is the precision minus the share of uniform groups among all groups, which is the precision of cutting
    arbitrary groups: in a buffer where most groups end with equal rewards, every gate is precise. If a share s of the
    groups is cut, it equals (1 - s)(p - q), where p and q are the shares of uniform groups among the cut groups and
    among the rest. Its interval is that of p - q (Newcombe 1998, method 10, from Wilson's intervals of p and q) times
    (1 - s). A bootstrap would show no spread for a precision of 0 or 1, however few groups are cut.
    """
    tp, fired, positives = int((cut & uniform).sum()), int(cut.sum()), int(uniform.sum())
    row: Row = {"cut": fired, "tp": tp, "fp": fired - tp}
    for name, trials in (("precision", fired), ("recall", positives)):
        found = wilson(tp, trials) if trials else None
        row[name] = found.mean if found else None
        row[f"{name}_ci95"] = [found.low, found.high] if found else None
    left = len(cut) - fired
    if not fired or not left:  # with all groups cut there is no difference to arbitrary cuts
        return row | {"over_base": 0.0 if fired else None, "over_base_ci95": [0.0, 0.0] if fired else None}
    of_cut, of_rest = wilson(tp, fired), wilson(positives - tp, left)
    bounds = difference((of_cut.mean, of_cut.low, of_cut.high), (of_rest.mean, of_rest.low, of_rest.high))
    share = left / len(cut)
    return row | {
        "over_base": share * (of_cut.mean - of_rest.mean),
        "over_base_ci95": bounds and [share * end for end in bounds],
    }


def difference(above: Bounded, below: Bounded) -> tuple[float, float] | None:
    """Returns the interval of ``above`` - ``below`` for two independent numbers, or None if one of them has no
    interval.

    It uses the method of variance estimates recovery (Zou and Donner 2008; for shares Newcombe 1998). The distance of
    the lower end from the difference is the root of the sum of squares of the distance from ``above`` to its lower end
    and of the distance from ``below`` to its upper end; for the upper end the other two are used. If the numbers are
    positively correlated, the interval is too wide.
    """
    (a, a_low, a_high), (b, b_low, b_high) = above, below
    if a_low is None or a_high is None or b_low is None or b_high is None:
        return None
    return a - b - sqrt((a - a_low) ** 2 + (b_high - b) ** 2), a - b + sqrt((a_high - a) ** 2 + (b - b_low) ** 2)
