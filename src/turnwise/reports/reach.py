"""What it took to get somewhere: turns, tokens and CPU seconds until held-out success first reached a level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from turnwise.errors import InputError
from turnwise.reports.measured import Measured
from turnwise.reports.tables import Table


@dataclass(frozen=True, slots=True)
class Cost:
    """What was spent since a run began, its profile included, its evaluations not."""

    turns: float
    tokens: float
    cpu: float  # s of the training process

    def towards(self, other: Cost, share: float) -> Cost:
        """The point of the way to ``other`` at ``share``, in [0, 1]."""
        return Cost(
            self.turns + share * (other.turns - self.turns),
            self.tokens + share * (other.tokens - self.tokens),
            self.cpu + share * (other.cpu - self.cpu),
        )


Curve = Sequence[tuple[Cost, float]]
"""What was spent, and the held-out success (percent) that was measured then; in order."""


def curve(run: Measured) -> Curve:
    """The evaluations of a run, ``eval.every`` and at both ends: the mean over its splits of sampled success.

    The profile of a run that has one is spent before the first of them.

    Raises:
        InputError: a row of an iteration is lost.
    """
    spent = Cost(*(run.value(f"profile_{what}") or 0.0 for what in ("turns", "tokens", "cpu_seconds")))
    begun, points, trained = spent, [], {row["iteration"]: row for row in run.rows if row["phase"] == "train"}
    done = 0
    for row in sorted((row for row in run.rows if row["phase"] == "eval"), key=lambda row: row["iteration"]):
        for iteration in range(done, row["iteration"]):
            if (last := trained.get(iteration)) is None:
                raise InputError(
                    f"{run.folder}/metrics.jsonl: iteration {iteration} is missing; run it again with fresh=true"
                )
            spent = Cost(
                begun.turns + last["rollout/turns"],
                begun.tokens + last["rollout/tokens"],
                spent.cpu + last["cpu/iteration"],
            )
        done = row["iteration"]
        found = [row[key] for key in ("eval/seen/success", "eval/unseen/success") if key in row]
        if found:
            points.append((spent, fmean(found)))
    return points


def reached(points: Curve, level: float) -> Cost | None:
    """What was spent when success first stood at ``level``, on straight lines between evaluations; None where it never did."""
    if points and points[0][1] >= level:
        return points[0][0]
    for (before, low), (after, high) in pairwise(points):
        if high >= level:
            return before.towards(after, (level - low) / (high - low))
    return None


def reach_table(levels: Sequence[float], rows: Mapping[str, Sequence[Measured]]) -> Table:
    """For each level what each row took to reach it, means over seeds, and its CPU seconds by those of the first row.

    A row of which a seed did not get there has at least the mean of what the others took and what this one spent in all.
    """
    table = Table(
        "What it took to reach a held-out success",
        ["level, %", "row", "seeds", "turns", "tokens", "CPU s", "CPU by the first's"],
        [],
    )
    for level in levels:
        first: tuple[float, bool] | None = None
        for label, runs in rows.items():
            points = [curve(run) for run in runs]
            found = [reached(one, level) for one in points]
            if not found:
                continue
            spent = [cost or one[-1][0] for cost, one in zip(found, points, strict=True)]
            there, least = sum(cost is not None for cost in found), "" if None not in found else "> "
            cpu = fmean(cost.cpu for cost in spent)
            first = first or (cpu, not least)
            table.rows.append(
                [
                    f"{level:g}",
                    label,
                    f"{there} of {len(found)}",
                    *(
                        f"{least}{fmean(getattr(cost, what) for cost in spent):,.0f}"
                        for what in ("turns", "tokens", "cpu")
                    ),
                    _ratio(cpu, not least, *first),
                ]
            )
    table.notes = [
        "Means over seeds, on straight lines between evaluations. seeds: how many got there. > : not all did; those that did not "
        "stand with all that they spent. Profiles are counted, evaluations are not."
    ]
    return table


def _ratio(cpu: float, whole: bool, first: float, first_whole: bool) -> str:
    """A quotient, of which either part may be a lower bound; with both it says nothing."""
    if not first or not (whole or first_whole):
        return "-"
    return f"{'' if whole == first_whole else '> ' if first_whole else '< '}{cpu / first:.2f}"
