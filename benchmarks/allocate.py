"""Measures the cost of exact allocation: python benchmarks/allocate.py

TRACE's root and prefix allocation (arXiv:2606.11119, Eqs. 13 and 16) are compared with the textbook dynamic programme
on the same instance, in alternating rounds. The numbers are medians of processor time with one thread. The last line is
one JSON object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from common import finish, program
from turnwise.methods.allocate import Array, Counts
from turnwise.methods.trace import prefix_allocation, root_allocation

TOLERANCE = 1e-9  # tolerance of the objective, which is a sum of up to B probabilities


def programme(gain_BM: Array) -> tuple[Counts, float]:
    """Solves the allocation by the textbook dynamic programme over items and budgets, in O(B M^2) operations.

    ``gain_BM`` holds for each item the gain of m = 0 .. M units; minus infinity forbids a number of units.
    """
    items, width = gain_BM.shape
    best = np.full(width, -np.inf)
    best[0] = 0.0
    chosen = np.zeros((items, width), np.int64)
    for i, gain in enumerate(gain_BM):
        grown = np.full(width, -np.inf)
        for m in np.flatnonzero(np.isfinite(gain)):
            found = best[: width - m] + gain[m]
            better = found > grown[m:]
            grown[m:][better] = found[better]
            chosen[i, m:][better] = m
        best = grown
    counts = np.zeros(items, np.int64)
    left = width - 1
    for i in range(items - 1, -1, -1):
        counts[i] = chosen[i, left]
        left -= counts[i]
    return counts, float(best[-1])


def seconds(run: Callable[[], object]) -> float:
    """Returns the processor time. On a shared machine, wall-clock time would favour work shorter than a time slice."""
    began = time.process_time()
    run()
    return time.process_time() - began


def optimal(rng: np.random.Generator, instances: int) -> bool:
    """Returns whether both allocations reach the programme's optimum on random instances with extremes and ties."""
    for _ in range(instances):
        items, budget = int(rng.integers(1, 12)), int(rng.integers(2, 40))
        values: Array = rng.choice(np.array([rng.random(), 0.0, 0.5, 1.0, rng.random() ** 8]), items)
        roots, prefixes = root_allocation(values, budget), prefix_allocation(values, budget)
        if roots.sum() != budget or prefixes.sum() != budget or (roots == 1).any():
            return False
        if mixed_probability(values, roots).sum() < programme(root_gains(values, budget))[1] - TOLERANCE:
            return False
        same: Array = 1 - values[:, None] ** np.arange(budget + 1, dtype=np.float64)
        if (1 - values**prefixes).sum() < programme(same)[1] - TOLERANCE:
            return False
    return True


def mixed_probability(values_B: Array, counts_B: Counts) -> Array:
    """The probability that the rollouts of each prompt contain a success and a failure (TRACE Eq. 12)."""
    return np.where(counts_B < 2, 0.0, 1 - values_B**counts_B - (1 - values_B) ** counts_B)


def root_gains(values: Array, budget: int) -> Array:
    """Returns the gains of Eq. 12 for every prompt and number of rollouts. A single rollout is not allowed."""
    gains = np.stack([mixed_probability(values, np.full(len(values), m)) for m in range(budget + 1)], axis=1)
    gains[:, 1] = -np.inf
    return gains


def main(arguments: Sequence[str] | None = None) -> None:
    parser = program(__doc__)
    parser.add_argument("--prompts", type=int, default=512, help="number of prompts, B in the paper")
    parser.add_argument("--budget", type=int, default=1024, help="number of rollouts, M in the paper; at least 2")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds of the alternating comparison")
    parser.add_argument(
        "--instances",
        type=int,
        default=100,
        help="number of small random instances that are compared with the dynamic programme",
    )
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.prompts < 1 or given.budget < 2 or given.rounds < 1:
        parser.error("--prompts and --rounds must be at least 1 and --budget at least 2")
    rng = np.random.default_rng(given.seed)
    values = rng.beta(0.5, 0.5, given.prompts)  # success rates are often near 0 and 1 (the paper's Fig. 2a)
    million = rng.beta(0.5, 0.5, 1_000_000)
    gains = root_gains(values, given.budget)

    table_s, root_s, prefix_s, million_s = [], [], [], []
    for _ in range(given.rounds):
        table_s.append(seconds(lambda: programme(gains)))
        root_s += [seconds(lambda: root_allocation(values, given.budget)) for _ in range(21)]
        prefix_s += [seconds(lambda: prefix_allocation(values, given.budget)) for _ in range(21)]
        million_s.append(seconds(lambda: root_allocation(million, 2_000_000)))
    reached = mixed_probability(values, root_allocation(values, given.budget)).sum()
    exact = reached >= programme(gains)[1] - TOLERANCE and optimal(rng, given.instances)

    table = Table("what", "median", title=f"{given.prompts} prompts, {given.budget} rollouts")
    table.add_row("roots, ours", f"{median(root_s) * 1e3:.2f} ms")
    table.add_row("prefixes, ours", f"{median(prefix_s) * 1e3:.2f} ms")
    table.add_row("roots, dynamic programme", f"{median(table_s) * 1e3:.0f} ms")
    table.add_row("roots, 1,000,000 prompts and 2,000,000 rollouts", f"{median(million_s):.2f} s")
    Console().print(table)
    ratios = {
        "root_ms": round(median(root_s) * 1e3, 3),
        "prefix_ms": round(median(prefix_s) * 1e3, 3),
        "x_dynamic_programme": round(median(table_s) / median(root_s), 1),
        "million_s": round(median(million_s), 3),
        "optimal": exact,
    }
    finish("allocate", given, ratios, {})


if __name__ == "__main__":
    main()
