"""Thresholds of a gate from a buffer of groups that ran to their end, under a floor of precision.

``fixed`` looks once, ``sequential`` at several steps with one precision over all of them; both save as many turns as the floor
allows. What they promise on the groups that they were chosen on is too good; ``cross_validated`` says what is left of it on
groups that they have not seen.

``live`` says what counts as cut. A running gate lets a group be whose rollouts have all ended: there is nothing to stop. The
paper's tables count such a group too where its actions agree, nearly always rightly, and so print a higher precision than a
running gate has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.algo.gates.signals import DISTANCE
from turnwise.reports.gates.groups import Buffer

ROUNDS = 20  # of coordinate ascent; it ends sooner when nothing improves
CANDIDATES = 100  # thresholds tried at a step; where a buffer has more different values, quantiles of them


@dataclass(frozen=True, slots=True)
class Schedule:
    """Stop at the first of ``steps`` where d_K is below its threshold (0: never); one step is the fixed gate."""

    steps: tuple[int, ...]
    thresholds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """What a schedule does to a buffer."""

    cut: int
    tp: int
    saved_pct: float  # turns after the step of each cut, in percent of all turns

    @property
    def precision(self) -> float | None:
        return self.tp / self.cut if self.cut else None


Fit = Callable[[Buffer], Schedule | None]


def precision_floor(loss: float, useful: int, cut: int) -> float:
    """Precision at which at most a share ``loss`` of the useful (not zero-variance) groups is cut (App. C.5).

    (1 - p) cut / useful <= loss, so p >= 1 - loss * useful / cut; 0 where any precision will do.

    Raises:
        ValueError: the loss is no share, or a count is negative.
    """
    if not 0 <= loss <= 1 or useful < 0 or cut < 0:
        raise ValueError(f"precision_floor needs a share and two counts, got {loss}, {useful} and {cut}")
    return max(0.0, 1 - loss * useful / cut) if cut else 0.0


def fixed(buffer: Buffer, k: int, floor: float, live: bool = True) -> Schedule | None:
    """The threshold at step ``k`` that saves most at a precision of at least ``floor``; None where none saves anything.

    It is put midway between the last value that it cuts and the next one.
    """
    evidence = _Evidence.of(buffer, (k,), live)
    found = evidence.better((0.0,), 0, floor)
    return Schedule((k,), found) if found is not None else None


def sequential(buffer: Buffer, steps: Sequence[int], floor: float, live: bool = True) -> Schedule | None:
    """Thresholds for looks at all ``steps`` whose cuts, taken together, are right at least ``floor`` of the time.

    Coordinate ascent on the turns saved, from the best fixed gate: on this buffer it never saves less than that one.
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
    """What ``schedule`` cuts and saves."""
    return _Evidence.of(buffer, schedule.steps, live).score(schedule.thresholds)


def cross_validated(buffer: Buffer, fit: Fit, seed: int, folds: int = 10, live: bool = True) -> Score:
    """The score on each part of the buffer of what was fitted to the other parts, pooled over parts."""
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
    """A buffer as arrays, one row a step (M, N)."""

    values: np.ndarray
    tails: np.ndarray
    uniform: np.ndarray  # (N,)
    turns: float
    open: np.ndarray  # (M, N) whether the group may be cut at that step

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
        """``thresholds`` with the ``i``-th replaced so that more turns are saved at the floor; None where none is.

        Of equal savings, the more precise one; of equal precision, the lower threshold.
        """
        best, key = None, (self.score(thresholds).saved_pct, 1.0)
        for candidate in [0.0, *_candidates(self.values[i])]:
            trial = (*thresholds[:i], candidate, *thresholds[i + 1 :])
            found = self.score(trial)
            if found.precision is not None and found.precision >= floor and (found.saved_pct, found.precision) > key:
                best, key = trial, (found.saved_pct, found.precision)
        return best


def _candidates(values: np.ndarray) -> list[float]:
    """Thresholds that differ in what they cut: midway between neighbouring values, and above the last."""
    distinct = np.unique(values)
    between = (distinct[:-1] + distinct[1:]) / 2
    if len(between) > CANDIDATES:
        between = np.unique(np.quantile(between, np.linspace(0, 1, CANDIDATES), method="nearest"))
    return between.tolist() if distinct[-1] >= 1 else [*between.tolist(), 1.0]
