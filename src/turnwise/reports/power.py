"""Computes the number of seeds and tasks that would be needed to decide a claim (power analysis)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import stdev
from typing import Any

from turnwise.evaluation.stats import seeds_for, tasks_factor
from turnwise.reports.claim_verdict import Decision
from turnwise.reports.tables import Table, plain


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of seeds and the number of tasks that are needed to detect an advantage of ``effect`` with a given
    power.

    Each number is computed without regard to the other. ``seeds`` is None if there are fewer than two seeds from which
    to estimate a standard deviation, or if no practical number of seeds is enough. ``tasks`` is None if the runs did
    not record outcomes of single tasks.
    """

    effect: float
    seeds: int | None
    tasks: int | None

    @property
    def sentence(self) -> str:
        """The plan in words, such as ``14 seeds, 300 tasks``."""
        wanted = [f"{self.seeds:,} seeds" if self.seeds else "an unknown or impractical number of seeds"]
        return ", ".join([*wanted, *([f"{self.tasks:,} tasks"] if self.tasks else [])])


def planned(decision: Decision, power: float = 0.8) -> Plan | None:
    """Returns the seeds and tasks that are needed to decide a claim, or None without a positive ``effect``."""
    if decision.effect is None or not decision.effect > 0:
        return None
    seeds = seeds_for(decision.by_seed, decision.effect, power)
    tasks = None
    if decision.task_error is not None and decision.tasks:
        tasks = max(2, ceil(decision.tasks * tasks_factor(decision.task_error, decision.effect, power)))
    return Plan(decision.effect, seeds, tasks)


def power_table(title: str, decisions: list[Decision], power: float) -> Table:
    """Returns a table of the numbers of seeds and tasks that each claim needs, estimated from the existing runs."""
    headers = [
        "claim",
        "metric",
        "effect",
        "seeds there",
        "spread of a seed",
        "seeds needed",
        "tasks there",
        "tasks needed",
    ]
    table = Table(f"{title}: seeds and tasks for {100 * power:g} % power", headers, [])
    for one in decisions:
        plan = planned(one, power)
        spread = _spread(one.by_seed)
        table.rows.append(
            [
                one.claim.text,
                one.metric,
                "-" if plan is None else plain(plan.effect),
                str(len(one.by_seed) or "-"),
                "-" if spread is None else plain(spread),
                "-" if plan is None or plan.seeds is None else f"{plan.seeds:,}",
                str(one.tasks or "-"),
                "-" if plan is None or plan.tasks is None else f"{plan.tasks:,}",
            ]
        )
    table.notes = [
        "`effect`: the smallest difference that counts as an advantage in the sweep file, or the difference in the "
        "paper if it is smaller or if the sweep file gives none. `spread of a seed`: the standard deviation of the "
        "difference over seeds. `seeds needed`: for a two-sided t test at 5 % on one difference per seed. `tasks "
        "needed`: for a two-sided z test at 5 % on the mean over tasks, whose standard error falls with the square "
        "root of the number of tasks. A claim needs both numbers."
    ]
    return table


def power_json(decision: Decision, power: float) -> dict[str, Any]:
    """Returns the row of :func:`power_table` for a claim as a JSON value."""
    plan = planned(decision, power)
    return {
        "claim": decision.claim.text,
        "metric": decision.metric,
        "effect": plan and plan.effect,
        "spread": _spread(decision.by_seed),
        "seeds": plan and plan.seeds,
        "tasks": plan and plan.tasks,
    }


def _spread(values: tuple[float, ...]) -> float | None:
    return stdev(values) if len(values) > 1 else None
