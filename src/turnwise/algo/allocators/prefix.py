"""Prefix allocation of TRACE (arXiv:2606.11119, Eqs. 14-16): decides at which turns to branch, and how often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.algo.allocators.concave import Array, Counts, even, greedy, probabilities


def prefix_allocation(same: Sequence[float] | Array, budget: int) -> Counts:
    """Returns the number k of continuations of each prefix, shape (A,), so that the sum over prefixes of 1 - q^k is
    largest (Eqs. 15-16). 1 - q^k is the probability that at least one of k continuations ends with another outcome than
    the original rollout.

    The numbers sum to ``budget``. The gain of one more continuation is q^(k - 1) (1 - q), which falls with k, so the
    greedy choice is optimal. Once every gain is 0 (every prefix has q = 1, or has q = 0 and one continuation), the rest
    of the budget is spread evenly.

    Args:
        same: q of each prefix: the probability that a continuation ends with the same outcome as the original rollout.
        budget: the number of continuations to distribute; m N in the paper.

    Raises:
        ValueError: a probability is outside [0, 1], the budget is below 0, or it is above 0 and there is no prefix.
    """
    q_A = probabilities(same, "same")
    if budget < 0 or (budget > 0 and not len(q_A)):
        raise ValueError(
            f"budget {budget} cannot be spent on {len(q_A)} prefixes; a budget must be at least 0, and a budget above "
            "0 needs at least one prefix"
        )

    def gain(items: Counts, start: int, stop: int) -> Array:
        q = q_A[items, None]
        return (1 - q) * q ** np.arange(start, stop)[None]

    counts_A = greedy(gain, len(q_A), budget)
    left = budget - int(counts_A.sum())
    return counts_A + even(len(q_A), left) if left else counts_A


def same_outcome(values: Sequence[float] | Array, rewards: Sequence[float] | Array) -> Array:
    """Returns q = r V + (1 - r) (1 - V) of each prefix (Eq. 15): the probability that a continuation has the same
    outcome as the original rollout. Rewards r between 0 and 1 are not rounded. Raises a ValueError if a number is
    outside [0, 1].
    """
    v_A, r_A = probabilities(values, "values"), probabilities(rewards, "rewards")
    return r_A * v_A + (1 - r_A) * (1 - v_A)
