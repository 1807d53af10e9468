"""Counts the groups that a gate cuts (stops early). A cut is correct if all rewards of the group are equal."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from turnwise.evaluation.stats import wilson

Row = dict[str, Any]
Bounded = tuple[float, float | None, float | None]
"""A number and the two ends of its interval, which are None if the number has no interval."""


def counts(cut: np.ndarray, uniform: np.ndarray) -> Row:
    """Returns how well a gate's cuts agree with the rewards of the groups.

    The result has ``cut`` (the number of cut groups), ``tp`` (cut groups with equal rewards), ``fp`` (the other cut
    groups), precision and recall with Wilson's intervals, and ``over_base``. ``over_base`` is the precision minus the
    fraction of uniform groups among all groups, which is the precision of cutting random groups.

    Let s be the fraction of groups that are cut, p the fraction of uniform groups among the cut groups, and q the
    fraction of uniform groups among the groups that are not cut. Then ``over_base`` equals (1 - s)(p - q). Its interval
    is (1 - s) times the interval of p - q (Newcombe 1998, method 10, from Wilson's intervals of p and q). A bootstrap
    would show no spread for a precision of 0 or 1, however few groups are cut.

    Args:
        cut: for each group, whether the gate cuts it.
        uniform: for each group, whether all its rewards are equal.
    """
    tp, fired, positives = int((cut & uniform).sum()), int(cut.sum()), int(uniform.sum())
    row: Row = {"cut": fired, "tp": tp, "fp": fired - tp}
    for name, trials in (("precision", fired), ("recall", positives)):
        found = wilson(tp, trials) if trials else None
        row[name] = found.mean if found else None
        row[f"{name}_ci95"] = [found.low, found.high] if found else None
    left = len(cut) - fired
    if not fired or not left:  # if all groups are cut, there is no difference from cutting random groups
        return row | {"over_base": 0.0 if fired else None, "over_base_ci95": [0.0, 0.0] if fired else None}
    of_cut, of_rest = wilson(tp, fired), wilson(positives - tp, left)
    bounds = difference((of_cut.mean, of_cut.low, of_cut.high), (of_rest.mean, of_rest.low, of_rest.high))
    share = left / len(cut)
    return row | {
        "over_base": share * (of_cut.mean - of_rest.mean),
        "over_base_ci95": bounds and [share * end for end in bounds],
    }


def difference(above: Bounded, below: Bounded) -> tuple[float, float] | None:
    """Returns the interval of the difference ``above`` - ``below`` of two independent numbers, or None if one of them
    has no interval.

    The method is variance estimates recovery (MOVER; Zou and Donner 2008; for proportions Newcombe 1998). Let a and b
    be the two numbers, and [a1, a2] and [b1, b2] their intervals. The lower end is a - b - sqrt((a - a1)^2 + (b2 -
    b)^2), and the upper end is a - b + sqrt((a2 - a)^2 + (b - b1)^2). If the two numbers are positively correlated, the
    interval is too wide.
    """
    (a, a_low, a_high), (b, b_low, b_high) = above, below
    if a_low is None or a_high is None or b_low is None or b_high is None:
        return None
    return a - b - sqrt((a - a_low) ** 2 + (b_high - b) ** 2), a - b + sqrt((a_high - a) ** 2 + (b - b_low) ** 2)
