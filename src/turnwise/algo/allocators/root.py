"""Root allocation of TRACE (arXiv:2606.11119, Eqs. 12-13): which prompts, and how many rollouts each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.algo.allocators.concave import Array, Counts, even, greedy, probabilities


def root_allocation(values: Sequence[float] | Array, budget: int) -> Counts:
    """Rollouts m of each prompt, m in {0, 2, 3, ...} with sum ``budget``, that maximise the sum of Eq. 12, (B,).

    The gain of one more rollout is f(m) - f(m - 1) with f(m) = 1 - v^m - (1 - v)^m. Seen from 0 it is v (1 - v) for each of
    the first two (together f(2)), the same for the third, and falls from there: f is its own concave hull but for m = 1,
    which is not allowed. Greedy on the hull is exact unless it leaves one prompt with a single rollout. Then, by the
    hull's duality, the best is one unit away: that rollout goes to the best next unit elsewhere, or the worst unit
    elsewhere comes to it.

    Args:
        values: predicted success v of each prompt.
        budget: M.

    Raises:
        ValueError: a value outside [0, 1], or a budget that no allocation spends: below 0, 1, or above 0 for no prompt.
    """
    v_B = probabilities(values, "values")
    if budget < 0 or budget == 1 or (budget > 0 and not len(v_B)):
        raise ValueError(f"budget {budget} cannot be spent on {len(v_B)} prompts in groups of two or more rollouts")
    if budget == 0:
        return np.zeros(len(v_B), np.int64)
    high_B = np.maximum(v_B, 1 - v_B)
    low_B = np.minimum(v_B, 1 - v_B)
    pair_B = high_B * low_B
    if not pair_B.any():  # nothing is uncertain: any allocation is as good, so as many prompts as it makes groups for
        counts_B = np.zeros(len(v_B), np.int64)
        active = min(len(v_B), budget // 2)
        counts_B[:active] = even(active, budget)
        return counts_B

    def gain(items: Counts, start: int, stop: int) -> Array:
        high, low, pair = (x[items, None] for x in (high_B, low_B, pair_B))
        if stop <= 3:
            return np.broadcast_to(pair, (len(items), stop - start))
        before = np.arange(start, stop)[None]  # rollouts that a unit adds to
        fall = low * high**before + high * low**before
        return np.where(before < 3, pair, np.minimum(fall, pair))

    counts_B = greedy(gain, len(v_B), budget, width=3)
    left = budget - int(counts_B.sum())
    if left:  # the gains of all uncertain prompts have underflowed to 0
        taken = np.flatnonzero(counts_B)
        counts_B[taken] += even(len(taken), left)
    lone = np.flatnonzero(counts_B == 1)  # one at most: greedy fills one prompt before the next
    if len(lone):
        _complete(counts_B, int(lone[0]), pair_B, high_B, low_B)
    return counts_B


def _complete(counts_B: Counts, lone: int, pair_B: Array, high_B: Array, low_B: Array) -> None:
    """Take the single rollout of ``lone`` away, or give it a second one, whichever loses less."""
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
    """Predicted probability that ``counts`` rollouts of each prompt hold a success and a failure (Eq. 12)."""
    v_B = probabilities(values, "values")
    m_B = np.asarray(counts)
    return np.where(m_B < 2, 0.0, 1 - v_B**m_B - (1 - v_B) ** m_B)
