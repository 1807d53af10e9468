"""Tunes the thresholds of a gate on groups that ran to their end. The gate shall save as many turns as possible with at
least a given precision, which is the fraction of cut groups whose rewards are equal.

``fixed`` tunes a gate that decides at one step. ``sequential`` tunes a gate that decides at several steps, whose
precision counts the cuts of all steps. Results on the groups that were used for tuning are too optimistic, so
``cross_validated`` evaluates thresholds on other groups.

``live`` selects which groups count as cut. With ``live``, as for a running gate, a group whose rollouts have all ended
is not cut. Without ``live``, as in the paper's tables, an ended group counts as cut if d_K (the mean edit distance
between the first K actions of its rollouts) is below the threshold. These cuts are nearly always correct, so the
paper's tables show a higher precision than a running gate has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.algo.gates.gate import DISTANCE
from turnwise.reports.gates.recorded_groups import Buffer

ROUNDS = 20  # largest number of rounds of coordinate ascent; a round without improvement ends it earlier
CANDIDATES = 100  # largest number of thresholds tried at a step; if there are more, quantiles of them are tried


@dataclass(frozen=True, slots=True)
class Schedule:
    """Thresholds of a gate that stops a group at the first of ``steps`` at which d_K (the mean edit distance between
    the first K actions of its rollouts) is below the threshold of the step. A threshold of 0 stops no group.
    """

    steps: tuple[int, ...]
    thresholds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Score:
    cut: int  # number of cut groups
    tp: int  # number of cut groups whose rewards are equal
    saved_pct: float  # turns of cut groups after the step of the cut, in percent of all turns

    @property
    def precision(self) -> float | None:
        return self.tp / self.cut if self.cut else None


Fit = Callable[[Buffer], Schedule | None]


def precision_floor(loss: float, useful: int, cut: int) -> float:
    """Returns the smallest precision p with which a gate cuts at most the fraction ``loss`` of the ``useful`` groups,
    whose rewards differ (App. C.5 of Selective Rollout). With ``cut`` cut groups, (1 - p) cut / useful <= loss means p
    >= 1 - loss * useful / cut. The result is 0 if any precision is enough.

    Raises:
        ValueError: ``loss`` is not in [0, 1], or a count is negative.
    """
    if not 0 <= loss <= 1 or useful < 0 or cut < 0:
        raise ValueError(f"loss must be in [0, 1], useful and cut at least 0, got {loss}, {useful} and {cut}")
    return max(0.0, 1 - loss * useful / cut) if cut else 0.0


def fixed(buffer: Buffer, k: int, floor: float, live: bool = True) -> Schedule | None:
    """Returns the threshold of d_K (the mean edit distance between the first K actions of a group's rollouts) at step
    ``k`` that saves the most turns with a precision of at least ``floor``. Returns None if no threshold with this
    precision saves any turns.

    The threshold is midway between the largest value of d_K that is cut and the next larger value.
    """
    evidence = _Evidence.of(buffer, (k,), live)
    found = evidence.better((0.0,), 0, floor)
    return Schedule((k,), found) if found is not None else None


def sequential(buffer: Buffer, steps: Sequence[int], floor: float, live: bool = True) -> Schedule | None:
    """Returns thresholds for a gate that decides at each of ``steps``. All cuts together have a precision of at least
    ``floor``.

    Coordinate ascent maximises the saved turns. It starts from the best gate with a single step, so the result saves at
    least as much as that gate on this buffer.
    """
    steps = tuple(steps)
    evidence = _Evidence.of(buffer, steps, live)
    never = (0.0,) * len(steps)
    singles = [found for i in range(len(steps)) if (found := evidence.better(never, i, floor)) is not None]
    if not singles:
        return None
    thresholds = max(singles, key=lambda found: evidence.score(found).saved_pct)
    for _ in range(ROUNDS):
        before = thresholds
        for i in range(len(steps)):
            thresholds = evidence.better(thresholds, i, floor) or thresholds
        if thresholds == before:
            break
    return Schedule(steps, thresholds)


def score(buffer: Buffer, schedule: Schedule, live: bool = True) -> Score:
    return _Evidence.of(buffer, schedule.steps, live).score(schedule.thresholds)


def cross_validated(buffer: Buffer, fit: Fit, seed: int, folds: int = 10, live: bool = True) -> Score:
    """Returns the score from cross-validation, summed over folds. Each schedule is tuned on the remaining folds."""
    order = np.random.default_rng(seed).permutation(len(buffer.groups))
    cut, tp, saved = 0, 0, 0.0
    for part in np.array_split(order, min(folds, len(order))):
        others = np.setdiff1d(order, part)
        schedule = fit(buffer.only(others)) if len(others) else None
        if schedule is None:
            continue
        held_out = buffer.only(part)
        found = score(held_out, schedule, live)
        cut, tp = cut + found.cut, tp + found.tp
        saved += found.saved_pct * float(held_out.turns.sum())
    return Score(cut, tp, saved / float(buffer.turns.sum()))


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The data of a buffer as arrays, for M steps and N groups."""

    values: np.ndarray  # (M, N) d_K
    tails: np.ndarray  # (M, N) number of turns after the step
    uniform: np.ndarray  # (N,) bool
    turns: float
    open: np.ndarray  # (M, N) bool: whether the group may be cut at the step

    @classmethod
    def of(cls, buffer: Buffer, steps: Sequence[int], live: bool) -> _Evidence:
        values = np.stack([buffer.values(k, DISTANCE) for k in steps])
        tails = np.stack([buffer.tails(k) for k in steps])
        return cls(values, tails, buffer.uniform, float(buffer.turns.sum()), (tails > 0) | (not live))

    def score(self, thresholds: Sequence[float]) -> Score:
        fires = (self.values < np.array(thresholds)[:, None]) & self.open
        cut, first = fires.any(0), fires.argmax(0)
        saved = self.tails[first, np.arange(len(first))][cut].sum()
        return Score(int(cut.sum()), int((cut & self.uniform).sum()), float(100 * saved / self.turns))

    def better(self, thresholds: tuple[float, ...], i: int, floor: float) -> tuple[float, ...] | None:
        """Returns ``thresholds`` with the ``i``-th threshold that saves the most turns with a precision of at least
        ``floor``. Returns None if no new threshold saves more turns than the present one.

        Among thresholds that save equally many turns, the highest precision counts, then the lowest threshold.
        """
        best, key = None, (self.score(thresholds).saved_pct, 1.0)
        for candidate in [0.0, *_candidates(self.values[i])]:
            trial = (*thresholds[:i], candidate, *thresholds[i + 1 :])
            found = self.score(trial)
            if found.precision is not None and found.precision >= floor and (found.saved_pct, found.precision) > key:
                best, key = trial, (found.saved_pct, found.precision)
        return best


def _candidates(values: np.ndarray) -> list[float]:
    """Returns the thresholds to try for a signal with these values in the groups. Thresholds are midway between
    neighbouring values, and one is above the largest value unless that value is 1.
    """
    distinct = np.unique(values)
    between = (distinct[:-1] + distinct[1:]) / 2
    if len(between) > CANDIDATES:
        between = np.unique(np.quantile(between, np.linspace(0, 1, CANDIDATES), method="nearest"))
    return between.tolist() if distinct[-1] >= 1 else [*between.tolist(), 1.0]
