"""Root allocation of TRACE (arXiv:2606.11119, Eqs. 12-13): decides how many rollouts each prompt gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.algo.allocators.concave import Array, Counts, even, greedy, probabilities


def root_allocation(values: Sequence[float] | Array, budget: int) -> Counts:
    """Returns the number m of rollouts of each prompt, shape (B,), so that the sum of f(m) over prompts is largest.
    f(m) is the predicted probability that m rollouts of a prompt contain both a success and a failure (Eq. 12).

    Each m is in {0, 2, 3, ...}, and all m sum to ``budget``. The gain of the m-th rollout is f(m) - f(m - 1), where
    f(m) = 1 - v^m - (1 - v)^m and v is the predicted success. The first two rollouts together gain f(2), so each of
    them gains v (1 - v). The third gains the same, and later ones gain less. So f equals its concave hull except at m =
    1, which is not allowed. The greedy choice on the hull is optimal unless it leaves one prompt with a single rollout.
    In that case, by the duality of the hull, one rollout must be moved: either the single rollout goes to the prompt
    that gains most from one more, or the prompt with the single rollout gets a second one from the prompt that loses
    least.

    Args:
        values: predicted success v of each prompt.
        budget: M, the number of rollouts to spend.

    Raises:
        ValueError: a value is outside [0, 1], the budget is below 0 or is 1, or it is above 0 and there is no prompt.
    """
    v_B = probabilities(values, "values")
    if budget < 0 or budget == 1 or (budget > 0 and not len(v_B)):
        raise ValueError(
            f"budget {budget} cannot be spent on {len(v_B)} prompts, because a prompt gets either no rollout or at least "
            "two; give at least one prompt and a budget of 0 or of at least 2"
        )
    if budget == 0:
        return np.zeros(len(v_B), np.int64)
    high_B = np.maximum(v_B, 1 - v_B)
    low_B = np.minimum(v_B, 1 - v_B)
    pair_B = high_B * low_B
    if (
        not pair_B.any()
    ):  # no outcome is uncertain, so every allocation is equally good: use as many prompts as possible
        counts_B = np.zeros(len(v_B), np.int64)
        active = min(len(v_B), budget // 2)
        counts_B[:active] = even(active, budget)
        return counts_B

    def gain(items: Counts, start: int, stop: int) -> Array:
        high, low, pair = (x[items, None] for x in (high_B, low_B, pair_B))
        if stop <= 3:
            return np.broadcast_to(pair, (len(items), stop - start))
        before = np.arange(start, stop)[None]  # the number of rollouts before the added one
        fall = low * high**before + high * low**before
        return np.where(before < 3, pair, np.minimum(fall, pair))

    counts_B = greedy(gain, len(v_B), budget, width=3)
    left = budget - int(counts_B.sum())
    if left:  # the gains of all uncertain prompts have underflowed to 0
        taken = np.flatnonzero(counts_B)
        counts_B[taken] += even(len(taken), left)
    lone = np.flatnonzero(counts_B == 1)  # at most one, because greedy fills one prompt before the next
    if len(lone):
        _complete(counts_B, int(lone[0]), pair_B, high_B, low_B)
    return counts_B


def _complete(counts_B: Counts, lone: int, pair_B: Array, high_B: Array, low_B: Array) -> None:
    """Moves one rollout, so that prompt ``lone`` has none or two instead of one, with the greater sum of gains."""
    others = np.flatnonzero(counts_B >= 2)
    m, high, low, pair = (x[others] for x in (counts_B, high_B, low_B, pair_B))
    following = np.where(m < 3, pair, low * high**m + high * low**m)
    last = np.where(m < 3, np.inf, np.where(m == 3, pair, low * high ** (m - 1) + high * low ** (m - 1)))
    best, worst = int(np.argmax(following)), int(np.argmin(last))
    if pair_B[lone] - last[worst] > following[best] - pair_B[lone]:
        counts_B[others[worst]] -= 1
        counts_B[lone] = 2
    else:
        counts_B[others[best]] += 1
        counts_B[lone] = 0


def mixed_probability(values: Sequence[float] | Array, counts: Sequence[int] | Counts) -> Array:
    """Returns for each prompt the predicted probability that its ``counts`` rollouts contain both a success and a
    failure (Eq. 12).
    """
    v_B = probabilities(values, "values")
    m_B = np.asarray(counts)
    return np.where(m_B < 2, 0.0, 1 - v_B**m_B - (1 - v_B) ** m_B)
