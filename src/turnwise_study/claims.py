"""Decides whether a paper's claims hold in our runs, at the 95 % level."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal, get_args

from scipy.special import ndtr, ndtri

from turnwise.evaluation.stats import Estimate, mean_interval, paired_mean_difference, two_way_interval
from turnwise_study.gates.report import number_in_report
from turnwise_study.gates.statistics import difference
from turnwise_study.run_metrics import Runs, is_change, values
from turnwise_study.sweeps.sweep_file import Comparison

Verdict = Literal["holds", "fails", "undecided", "untestable", "not_run"]
DIGITS = 9  # decimals to which the ends of an interval are rounded, so that floating-point errors change no verdict
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True, slots=True)
class Decision:
    """A claim of a paper, and the verdict of our runs on it. ``difference`` is above - below in the unit of the metric,
    with its interval from ``low`` to ``high``; the margin of the claim is not subtracted. The verdict ``untestable``
    means that a precondition is false at this scale, so that the runs neither support nor refute the claim.
    """

    claim: Comparison
    metric: str
    verdict: Verdict
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: tuple[int, ...] = ()
    tasks: int = 0
    why: str = ""
    cannot: bool = False  # whether the claim cannot be run at this scale
    sides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # row -> seeds whose runs have the metric
    one_seed: bool = False  # whether only one seed of trained rows was compared (other seeds may give another result)
    by_seed: tuple[float, ...] = ()  # above - below for each seed, in the order of ``seeds``
    beside: Decision | None = None  # decision on this claim for the other decoding mode (greedy, or else sampled)

    @property
    def turns(self) -> bool:
        """Whether the other decoding mode gives another verdict."""
        return self.beside is not None and self.beside.verdict != self.verdict and self.verdict != "untestable"

    @property
    def p_value(self) -> float | None:
        """The two-sided p-value of the difference against the margin, from the interval as that of a normal."""
        if self.difference is None or self.low is None or self.high is None:
            return None
        error = (self.high - self.low) / (2 * ndtri(0.975))
        distance = abs(self.difference - self.claim.margin)
        return float(2 * ndtr(-distance / error)) if error else float(not distance)


def decide_claim(
    claim: Comparison,
    metric: str,
    rows: Mapping[str, Runs],
    untrained: Collection[str] = (),
    least: float | None = None,
) -> Decision:
    """Decides a claim from finished runs. ``least`` is the smallest difference that counts as an advantage
    (:func:`verdict_of_interval`).

    If the runs recorded outcomes of single tasks, the interval is a two-way one, for new seeds and new tasks
    (:func:`turnwise.evaluation.stats.two_way_interval`). Otherwise it is Student's t over seeds. With a single seed, it
    is a paired bootstrap over tasks. In that case ``one_seed`` is set, unless all rows of the claim are ``untrained``,
    which means that their policy is only evaluated.
    """
    absent = [row for row in claim.rows if not rows.get(row)]
    if absent:
        return Decision(claim, metric, "not_run", why=f"no finished run of {', '.join(absent)}")
    flipped = not isinstance(claim.above, str)  # the claim says that a fixed number exceeds the metric of a row
    first, second = (claim.below, claim.above) if flipped else (claim.above, claim.below)
    above, below = rows[str(first)], rows[second] if isinstance(second, str) else None
    number = 0.0 if isinstance(second, str) else second
    sides = {row: values(rows[row], metric) for row in claim.rows}
    other = dict.fromkeys(above, number) if below is None else sides[str(second)]
    seeds = tuple(seed for seed in sides[str(first)] if seed in other)
    decision = Decision(
        claim, metric, "not_run", seeds=seeds, sides={row: tuple(known) for row, known in sides.items()}
    )
    if not seeds:
        return replace(decision, why=f"no seed has a value of {metric} in all rows of the claim")
    sign = -1 if flipped else 1
    differences = [sides[str(first)][seed] - other[seed] for seed in seeds]
    tasks = _claim_over_tasks(above, below, number, metric, seeds)
    estimate = tasks or mean_interval(differences)
    decision = replace(
        decision,
        difference=sum(differences) / len(differences) * sign,
        tasks=tasks.n if tasks else 0,
        by_seed=tuple(one * sign for one in differences),
        one_seed=len(seeds) == 1 and not set(claim.rows) <= set(untrained),
    )
    if estimate.low is None or estimate.high is None:
        return replace(
            decision, verdict="undecided", why="only one seed, and outcomes of single tasks are not recorded"
        )
    low, high = (round(end, DIGITS) + 0.0 for end in sorted((sign * estimate.low, sign * estimate.high)))
    verdict = verdict_of_interval(low, high, claim.margin, least)
    why = f"no advantage of {least:g} or more" if verdict == "fails" and high >= claim.margin else ""
    return replace(decision, verdict=verdict, low=low, high=high, why=why)


def verdict_of_interval(low: float, high: float, margin: float, least: float | None = None) -> Verdict:
    """The verdict on the claim that a difference with this interval exceeds ``margin``. If the margin is 0 and
    ``least`` is given, the claim already fails if the whole interval lies below ``least``.
    """
    if low > margin:
        return "holds"
    bar = least if least is not None and margin == 0 else margin
    return "fails" if high < bar else "undecided"


def decide_gate_claim(claim: Comparison, metric: str, report: Mapping[str, Any] | None) -> Decision:
    """Decides a claim from the JSON of ``scripts/gate_report.py``. The metric is a path in it, in which ``{}`` stands
    for the name of the row. The interval of a difference assumes that both numbers come from different groups of
    rollouts (``difference``); for differences on equal groups, the report has metrics of their own (``over_base``,
    ...).
    """
    if report is None:
        return Decision(claim, metric, "not_run", why="no groups are recorded")
    ends = [_interval(side, metric, report) for side in (claim.above, claim.below)]
    if any(end is None for end in ends):
        return Decision(claim, metric, "not_run", why=f"the recorded groups have no {metric}")
    above, below = (end for end in ends if end is not None)
    if (interval := difference(above, below)) is None:
        return Decision(claim, metric, "undecided", above.mean - below.mean, why="there is no interval")
    low, high = (round(end, DIGITS) + 0.0 for end in interval)
    return Decision(claim, metric, verdict_of_interval(low, high, claim.margin), above.mean - below.mean, low, high)


def _interval(side: str | float, metric: str, report: Mapping[str, Any]) -> Estimate | None:
    return number_in_report(report, metric, side) if isinstance(side, str) else Estimate(side, side, side)


def _claim_over_tasks(
    above: Runs, below: Runs | None, number: float, metric: str, seeds: Sequence[int]
) -> Estimate | None:
    """Returns the mean difference between the two sides of a claim, in percentage points, with its interval over seeds
    and tasks, or over tasks if there is one seed. Returns None if the runs lack comparable outcomes of single tasks.
    """
    if below is None and not is_change(metric):
        return None
    if below is not None and is_change(metric):
        one, other = ([runs[seed].outcomes(metric, "base") for seed in seeds] for runs in (above, below))
        if one != other:
            return None
    pairs = []
    for seed in seeds:
        after = above[seed].outcomes(metric, "after")
        before = above[seed].outcomes(metric, "base") if below is None else below[seed].outcomes(metric, "after")
        if after is None or before is None or set(after) != set(before):
            return None
        pairs.append((before, after))
    common = {
        suite: sorted(set.intersection(*(set(side[suite]) for pair in pairs for side in pair))) for suite in pairs[0][0]
    }
    if not all(common.values()) or any(set(before) != set(common) for before, _ in pairs):
        return None
    if len(seeds) > 1 and min(map(len, common.values())) < 2:
        return None
    if len(seeds) == 1:
        sides = [{suite: {task: side[suite][task] for task in common[suite]} for suite in common} for side in pairs[0]]
        estimate = paired_mean_difference(*sides)
    else:
        estimate = two_way_interval(
            {
                suite: [[fmean(after[suite][t]) - fmean(before[suite][t]) for t in tasks] for before, after in pairs]
                for suite, tasks in common.items()
            }
        )
    low, high = (None if end is None else 100 * end - number for end in (estimate.low, estimate.high))
    return Estimate(100 * estimate.mean - number, low, high, sum(map(len, common.values())))
