"""Computes the cost of reaching a given held-out success, in sampled turns, sampled tokens and CPU seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from turnwise.errors import InputError
from turnwise.reports.run_metrics import RunMetrics
from turnwise.reports.tables import Table

_PROFILED = ("profile_turns", "profile_tokens", "profile_cpu_seconds")


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run up to some moment. It includes profiles, which sample actions to select training states."""

    turns: float  # sampled turns, without those of evaluations
    tokens: float  # sampled tokens, without those of evaluations
    cpu: float  # CPU seconds of the training process, without evaluations

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.turns + other.turns, self.tokens + other.tokens, self.cpu + other.cpu)

    def __mul__(self, share: float) -> Cost:
        return Cost(self.turns * share, self.tokens * share, self.cpu * share)


Curve = Sequence[tuple[Cost, float]]
"""Pairs (cost, held-out success in percent at that cost) in the order of training; at least one pair."""


def curve(run: RunMetrics) -> Curve:
    """Returns pairs (cost, success) for the evaluations of a run before, during and after training. Success is the
    percentage of sampled held-out episodes that succeed, averaged over the splits ``seen`` and ``unseen``.

    Before an iteration, a run may make a profile: it samples actions to select training states. The cost of the profile
    is added to the cost of the iteration. All profiles of a run are assumed to cost the same, because each profile
    samples actions at every candidate state.

    Raises:
        InputError: the files of the run lack the cost of an iteration or the held-out success.
    """
    profile = _profile(run)
    spent, done, profiles = Cost(0, 0, 0), 0, 0.0
    trained = {row["iteration"]: row for row in run.training}
    evaluations = sorted((row for row in run.rows if row.get("phase") == "eval"), key=lambda row: row["iteration"])
    points = []
    before = (0.0, 0.0)  # turns and tokens of the previous row; rows hold running totals
    for row in evaluations:
        for iteration in range(done, row["iteration"]):
            here = trained.get(iteration, {})
            if not {"rollout/turns", "rollout/tokens", "cpu/iteration"} <= here.keys():
                raise InputError(
                    f"{run.folder}/metrics.jsonl: the cost of iteration {iteration} is missing; start the run again "
                    "with fresh=true"
                )
            sums = (here["rollout/turns"], here["rollout/tokens"])
            made = here.get("states/profiles", 1.0)
            spent += Cost(sums[0] - before[0], sums[1] - before[1], here["cpu/iteration"]) + profile * (made - profiles)
            before, profiles = sums, made
        done = row["iteration"]
        found = [row[key] for key in ("eval/seen/success", "eval/unseen/success") if key in row]
        if found:
            points.append((spent if done else profile, fmean(found)))
    if not points:
        raise InputError(
            f"{run.folder}: no held-out success of sampled episodes was logged; start the run again with fresh=true "
            "and eval.attempts=1 or more"
        )
    return points


def _profile(run: RunMetrics) -> Cost:
    """Returns the mean cost of one profile of a run. The cost is zero if the run made no profile."""
    costs = [run.value(name) for name in _PROFILED]
    if all(cost is None for cost in costs) and "profile" not in run.result.seconds:
        return Cost(0, 0, 0)
    turns, tokens, cpu = costs
    if turns is None or tokens is None or cpu is None:
        raise InputError(
            f"{run.folder}: the cost of the profile is missing, because an old version of the code made this run; "
            "start the run again with fresh=true"
        )
    return Cost(turns, tokens, cpu) * (1 / max((row.get("states/profiles", 1.0) for row in run.training), default=1.0))


def reached(points: Curve, level: float) -> Cost | None:
    """Returns the linearly interpolated cost at which success first reached ``level`` (percent), or None."""
    if points[0][1] >= level:
        return points[0][0]
    for (before, low), (after, high) in pairwise(points):
        if high >= level:
            share = (level - low) / (high - low)
            return before * (1 - share) + after * share
    return None


def curves(rows: Mapping[str, Sequence[RunMetrics]]) -> tuple[dict[str, list[Curve]], list[str]]:
    """Returns row -> curves of its runs (:func:`curve`), and a note for each run without a curve."""
    found: dict[str, list[Curve]] = {}
    notes = []
    for name, runs in rows.items():
        found[name] = []
        for run in runs:
            try:
                found[name].append(curve(run))
            except InputError as error:
                notes.append(f"left out: {error}")
    return found, notes


def reach_table(
    levels: Sequence[float | str], rows: Mapping[str, Sequence[RunMetrics]], labels: Mapping[str, str]
) -> Table:
    """Returns a table with the cost at which each row reaches each level of held-out success, as a mean over seeds.
    Another column divides the row's CPU seconds by the CPU seconds of the first row.

    If a seed did not reach the level, the total cost of its run is used, and the mean is marked as a lower bound.

    Args:
        levels: each level is a percentage, or the name of a row. The name stands for the mean success at the end of the
            row's runs.
    """
    yardstick = next(iter(rows), "")
    headers = ["row", "level, %", "seeds", "turns", "tokens", "CPU s", "ratio"]
    drawn, notes = curves(rows if levels else {})
    table = Table("What it took to reach a held-out success", headers, [], notes)
    for told in levels:
        ends = [points[-1][1] for points in drawn[told]] if isinstance(told, str) else []
        if isinstance(told, str) and not ends:
            continue
        level = fmean(ends) if ends else float(told)
        first: tuple[float, bool] | None = None
        for name, points in drawn.items():
            if not points:
                continue
            found = [reached(one, level) for one in points]
            spent = [cost or one[-1][0] for cost, one in zip(found, points, strict=True)]
            there, whole = sum(cost is not None for cost in found), None not in found
            cpu = fmean(cost.cpu for cost in spent)
            first = (cpu, whole) if name == yardstick else first
            table.rows.append(
                [
                    labels.get(name, name),
                    f"{level:.1f}" if isinstance(told, str) else f"{level:g}",
                    f"{there} of {len(found)}",
                    *(
                        f"{'' if whole else '> '}{fmean(getattr(cost, what) for cost in spent):,.0f}"
                        for what in ("turns", "tokens", "cpu")
                    ),
                    "-" if first is None else _ratio(cpu, whole, *first),
                ]
            )
        if isinstance(told, str):
            table.notes.append(
                f"Level {level:.1f} %: the mean success at the end of the runs of {labels.get(told, told)}."
            )
    table.notes.insert(
        0,
        "Each cost is a mean over seeds. The cost of a seed is the cost at which its success first reached the level, "
        "interpolated linearly between its evaluations. `seeds`: how many seeds reached the level. `>`: not all seeds "
        "reached the level; a seed that did not reach it counts with the total cost of its run. The costs include "
        "profiles (actions that are sampled to select training states), but no evaluations. `ratio`: the CPU seconds "
        f"of the row, divided by the CPU seconds of {labels.get(yardstick, yardstick)}.",
    )
    return table


def _ratio(cpu: float, whole: bool, first: float, first_whole: bool) -> str:
    """Returns ``cpu / first`` as text, with < or > if only one cost is a lower bound, and ``-`` if both are."""
    if not first or not (whole or first_whole):
        return "-"
    return f"{'' if whole == first_whole else '> ' if first_whole else '< '}{cpu / first:.2f}"
