"""Tunes the thresholds of a gate on a buffer of groups that ran to their end, with a minimum precision.

``fixed`` decides at one step, ``sequential`` at several steps with one precision over all of them. Both save as many
turns as the minimum precision allows. Results on the groups that were used for tuning are too optimistic;
``cross_validated`` evaluates the schedules on other groups.

``live`` selects what counts as a cut. A running gate does not stop a group whose rollouts have all ended. The paper's
tables count such a group as cut if its actions agree. That is nearly always correct, so the tables show a higher
precision than a running gate has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turnwise.algo.gates.signals import DISTANCE
from turnwise.reports.gates.groups import Buffer

ROUNDS = 20  # most rounds of coordinate ascent, which ends earlier if a round improves nothing
CANDIDATES = 100  # most thresholds that are tried at a step; quantiles are used if there are more distinct values


@dataclass(frozen=True, slots=True)
class Schedule:
    """Thresholds of a gate that stops at the first of ``steps`` where d_K is below its threshold (0: never)."""

    steps: tuple[int, ...]
    thresholds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """The cuts and savings of a schedule on a buffer."""

    cut: int
    tp: int
    saved_pct: float  # turns after the step of each cut, in percent of all turns

    @property
    def precision(self) -> float | None:
        return self.tp / self.cut if self.cut else None


Fit = Callable[[Buffer], Schedule | None]


def precision_floor(loss: float, useful: int, cut: int) -> float:
    """Returns the precision at which at most a share ``loss`` of the useful (not zero-variance) groups is cut (App. C.5).

    (1 - p) cut / useful <= loss, so p >= 1 - loss * useful / cut; 0 if any precision is enough.

    Raises:
        ValueError: the loss is not a share, or a count is negative.
    """
    if not 0 <= loss <= 1 or useful < 0 or cut < 0:
        raise ValueError(f"precision_floor needs a share and two counts, got {loss}, {useful} and {cut}")
    return max(0.0, 1 - loss * useful / cut) if cut else 0.0


def fixed(buffer: Buffer, k: int, floor: float, live: bool = True) -> Schedule | None:
    """Returns the threshold at step ``k`` that saves most with a precision of at least ``floor``, or None if none saves
    anything.

    The threshold is midway between the largest value that is cut and the next one.
    """
    evidence = _Evidence.of(buffer, (k,), live)
    found = evidence.better((0.0,), 0, floor)
    return Schedule((k,), found) if found is not None else None


def sequential(buffer: Buffer, steps: Sequence[int], floor: float, live: bool = True) -> Schedule | None:
    """Returns thresholds for decisions at all ``steps``, whose cuts together have a precision of at least ``floor``.

    Coordinate ascent on the saved turns starts from the best gate with one step, so that on this buffer it never saves
    less.
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
    """Returns how much ``schedule`` cuts and saves."""
    return _Evidence.of(buffer, schedule.steps, live).score(schedule.thresholds)


def cross_validated(buffer: Buffer, fit: Fit, seed: int, folds: int = 10, live: bool = True) -> Score:
    """Returns the score of schedules on parts of the buffer that were not used for their tuning, pooled over these
    parts.
    """
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
    """A buffer as arrays with one row for each step, (M, N)."""

    values: np.ndarray
    tails: np.ndarray
    uniform: np.ndarray  # (N,)
    turns: float
    open: np.ndarray  # (M, N) whether the group may be cut at this step

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
        """Returns ``thresholds`` with the ``i``-th one replaced so that more turns are saved at the floor, or None.

        Among equal savings the more precise threshold is chosen, and at equal precision the lower one.
        """
        best, key = None, (self.score(thresholds).saved_pct, 1.0)
        for candidate in [0.0, *_candidates(self.values[i])]:
            trial = (*thresholds[:i], candidate, *thresholds[i + 1 :])
            found = self.score(trial)
            if found.precision is not None and found.precision >= floor and (found.saved_pct, found.precision) > key:
                best, key = trial, (found.saved_pct, found.precision)
        return best


def _candidates(values: np.ndarray) -> list[float]:
    """Returns thresholds that lead to different cuts: midway between neighbouring values, and one above the largest."""
    distinct = np.unique(values)
    between = (distinct[:-1] + distinct[1:]) / 2
    if len(between) > CANDIDATES:
        between = np.unique(np.quantile(between, np.linspace(0, 1, CANDIDATES), method="nearest"))
    return between.tolist() if distinct[-1] >= 1 else [*between.tolist(), 1.0]
