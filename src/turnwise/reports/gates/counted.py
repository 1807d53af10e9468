"""Counts what a gate cuts: how many groups, how many of them rightly, and how far that is from cutting any group."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from turnwise.evaluation.stats import wilson

Row = dict[str, Any]
Bounded = tuple[float, float | None, float | None]
"""A number and the ends of its interval, which are None if it has none."""


def counts(cut: np.ndarray, uniform: np.ndarray) -> Row:
    """Returns cut, tp, fp, precision and recall of a cut, with Wilson's intervals of the last two, and ``over_base``.

    ``over_base`` is the precision minus the share of uniform groups among all, which is the precision of cutting any group: in a
    buffer where most groups end alike, every gate is precise. With a share s of the groups cut it equals (1 - s)(p - q), where p
    and q are the shares of uniform groups among those that are cut and among the rest. Its interval is that of p - q (Newcombe
    1998, method 10, from Wilson's intervals of p and q) times (1 - s). A bootstrap would give no spread to a precision of 0 or 1,
    however few groups are cut.
    """
    tp, fired, positives = int((cut & uniform).sum()), int(cut.sum()), int(uniform.sum())
    row: Row = {"cut": fired, "tp": tp, "fp": fired - tp}
    for name, trials in (("precision", fired), ("recall", positives)):
        found = wilson(tp, trials) if trials else None
        row[name] = found.mean if found else None
        row[f"{name}_ci95"] = [found.low, found.high] if found else None
    left = len(cut) - fired
    if not fired or not left:  # cutting all groups is cutting any
        return row | {"over_base": 0.0 if fired else None, "over_base_ci95": [0.0, 0.0] if fired else None}
    of_cut, of_rest = wilson(tp, fired), wilson(positives - tp, left)
    bounds = difference((of_cut.mean, of_cut.low, of_cut.high), (of_rest.mean, of_rest.low, of_rest.high))
    share = left / len(cut)
    return row | {
        "over_base": share * (of_cut.mean - of_rest.mean),
        "over_base_ci95": bounds and [share * end for end in bounds],
    }


def difference(above: Bounded, below: Bounded) -> tuple[float, float] | None:
    """Returns the interval of ``above`` - ``below``, which are independent of one another, or None if one has no interval.

    It is the method of variance estimates recovery (Zou and Donner 2008; for shares Newcombe 1998): each end is as far from the
    difference as the two ends that lead there, squared and summed. Of two numbers that rise and fall together it is too wide.
    """
    (a, a_low, a_high), (b, b_low, b_high) = above, below
    if a_low is None or a_high is None or b_low is None or b_high is None:
        return None
    return a - b - sqrt((a - a_low) ** 2 + (b_high - b) ** 2), a - b + sqrt((a_high - a) ** 2 + (b - b_low) ** 2)
