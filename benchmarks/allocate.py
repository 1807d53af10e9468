"""Measures the cost of exact allocation: python benchmarks/allocate.py

TRACE's root and prefix allocation (arXiv:2606.11119, Eqs. 13 and 16) are compared with the textbook dynamic programme
on the same instance, in alternating rounds. The numbers are medians of processor time with one thread, because on a
shared machine wall-clock time would favour work shorter than a time slice. The last line is one JSON object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from common import finish, positive, program, show
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
    units = np.zeros((items, width), np.int64)
    for i, gain in enumerate(gain_BM):
        grown = np.full(width, -np.inf)
        for m in np.flatnonzero(np.isfinite(gain)):
            sums = best[: width - m] + gain[m]
            better = sums > grown[m:]
            grown[m:][better] = sums[better]
            units[i, m:][better] = m
        best = grown
    counts = np.zeros(items, np.int64)
    left = width - 1
    for i in range(items - 1, -1, -1):
        counts[i] = units[i, left]
        left -= counts[i]
    return counts, float(best[-1])


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
    parser.add_argument("--prompts", type=positive, default=512, help="number of prompts, B in the paper")
    parser.add_argument("--budget", type=positive, default=1024, help="number of rollouts, M in the paper; at least 2")
    parser.add_argument("--rounds", type=positive, default=3, help="number of rounds of the alternating comparison")
    compared = "number of small random instances that are compared with the dynamic programme"
    parser.add_argument("--instances", type=int, default=100, help=compared)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    rng = np.random.default_rng(args.seed)
    values = rng.beta(0.5, 0.5, args.prompts)  # success rates are often near 0 and 1 (the paper's Fig. 2a)
    million = rng.beta(0.5, 0.5, 1_000_000)
    gains = root_gains(values, args.budget)

    taken: dict[str, list[float]] = {"table": [], "root": [], "prefix": [], "million": []}

    def measure(name: str, run: Callable[[], object], times: int = 1) -> None:
        for _ in range(times):
            began = time.process_time()
            run()
            taken[name].append(time.process_time() - began)

    for _ in range(args.rounds):
        measure("table", lambda: programme(gains))
        measure("root", lambda: root_allocation(values, args.budget), 21)
        measure("prefix", lambda: prefix_allocation(values, args.budget), 21)
        measure("million", lambda: root_allocation(million, 2_000_000))
    reached = mixed_probability(values, root_allocation(values, args.budget)).sum()
    exact = reached >= programme(gains)[1] - TOLERANCE and optimal(rng, args.instances)
    seconds = {name: median(several) for name, several in taken.items()}
    rows = [
        ["roots, ours", f"{seconds['root'] * 1e3:.2f} ms"],
        ["prefixes, ours", f"{seconds['prefix'] * 1e3:.2f} ms"],
        ["roots, dynamic programme", f"{seconds['table'] * 1e3:.0f} ms"],
        ["roots, 1,000,000 prompts and 2,000,000 rollouts", f"{seconds['million']:.2f} s"],
    ]
    show(f"{args.prompts} prompts, {args.budget} rollouts", ["what", "median"], rows)
    ratios = {
        "root_ms": round(seconds["root"] * 1e3, 3),
        "prefix_ms": round(seconds["prefix"] * 1e3, 3),
        "x_dynamic_programme": round(seconds["table"] / seconds["root"], 1),
        "million_s": round(seconds["million"], 3),
        "optimal": exact,
    }
    finish("allocate", args, ratios, {})


if __name__ == "__main__":
    main()
