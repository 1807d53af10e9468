"""Allocators that spend the rollouts where a predictor expects both success and failure: TRACE (arXiv:2606.11119), which
decides how many rollouts each prompt gets (Eqs. 12-13) and at which turns to branch, and how often (Eqs. 14-16), and PCL
(arXiv:2510.01135), which samples the prompts whose predicted success is nearest one half.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from turnwise.algo.allocators.allocator import anchors
from turnwise.types import Judge, RolloutTree, State, Value

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


class Gain(Protocol):
    def __call__(self, items: Counts, start: int, stop: int) -> Array:
        """Returns the gains of units number ``start + 1`` to ``stop`` of each item, shape (items, stop - start). Gains
        are at least 0, and a unit's gain is never greater than that of an earlier unit of the item.
        """
        ...


def greedy(gain: Gain, items: int, budget: int, width: int = 1) -> Counts:
    """Returns how many units to give to each item so that the sum of gains is largest, shape (items,).

    Only units with a gain above 0 are taken. The best ``budget`` units are those whose gain is above a threshold
    (``price``). Gains are computed in growing blocks, and only for items whose last computed gain was above the
    threshold. Units whose gain equals the threshold go to the items in order, and each item gets all of its own before
    the next item gets any.

    Args:
        gain: returns the gains of a block of units.
        budget: the number of units to spend; fewer are spent if no gain above 0 is left.
        width: the number of units per item in the first block.
    """
    active = np.arange(items)
    blocks: list[tuple[Counts, Array]] = []
    pool = np.empty(0)
    price, level = 0.0, 0
    while len(active) and level < budget:
        stop = min(budget, level + max(1, level // 2) if level else width)
        block = gain(active, level, stop)
        blocks.append((active, block))
        pool = np.concatenate([pool[pool >= price], block[(block >= price) & (block > 0)]])
        if len(pool) > budget:
            price = float(np.partition(pool, len(pool) - budget)[len(pool) - budget])
        active, level = active[block[:, -1] > price], stop
    above, at = np.zeros(items, np.int64), np.zeros(items, np.int64)
    for members, block in blocks:
        above[members] += (block > price).sum(1)
        at[members] += (block == price).sum(1)
    if price == 0:
        return above
    before = np.cumsum(at) - at
    return above + np.clip(budget - above.sum() - before, 0, at)


def even(items: int, budget: int) -> Counts:
    """The first items get the remainder."""
    counts = np.full(items, budget // items, np.int64)
    counts[: budget % items] += 1
    return counts


def probabilities(values: object, name: str) -> Array:
    """Raises a ValueError if ``values`` are not a flat list of numbers in [0, 1]."""
    array = np.asarray(values, dtype=np.float64)
    wrong = np.flatnonzero(~((array >= 0) & (array <= 1)))
    if array.ndim != 1 or len(wrong):
        what = (
            f"the value at index {wrong[0]} is {array[wrong[0]]}" if array.ndim == 1 else f"the shape is {array.shape}"
        )
        raise ValueError(f"{name} must be a list of probabilities in [0, 1]: {what}")
    return array


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


@dataclass(frozen=True, slots=True)
class Trace:
    """Distributes ``budget`` rollouts over the states by their predicted success (Eq. 13), then continues rollouts at
    chosen turns (Eq. 16).

    Continuations are started once, after the rollouts from the root have ended, and separately for each prompt. If no
    rollout of a prompt has a turn to branch at, the prompt gets the same number of further rollouts from its root
    instead. A rollout whose environment failed gets no continuations.

    Attributes:
        value: predicts the success of histories.
        reward: the reward of finished rollouts, within [0, 1].
        budget: M, the number of rollouts from the roots of all states of an update. None means twice the number of
            states, which is the paper's ratio.
        expansion: N, the number of continuations per root rollout.
        root: ``predicted`` (Eq. 13), or ``uniform``, which spreads the budget evenly over as many states as can get
            ``group_size`` rollouts each (over at least one state).
        prefix: ``predicted`` (Eq. 16), or ``random``, which starts each continuation at a turn drawn uniformly. The
            combinations of ``root`` and ``prefix`` are the rows of the paper's Table 1.
        group_size: number of rollouts per state with ``root=uniform``.
        seed: seed of the random choice of turns, and of the order in which equally good turns are chosen.
    """

    value: Value
    reward: Judge
    budget: Annotated[int, Interval(ge=2, le=10**7)] | None = None
    expansion: Annotated[int, Interval(ge=0, le=2**16)] = 2
    root: Literal["predicted", "uniform"] = "predicted"
    prefix: Literal["predicted", "random"] = "predicted"
    group_size: Annotated[int, Interval(ge=2, le=2**16)] = 4
    seed: int = 0

    def __call__(self, states: Sequence[State]) -> list[int]:
        if not states:
            return []
        budget = 2 * len(states) if self.budget is None else self.budget
        if self.root == "uniform":
            active = min(len(states), max(1, budget // self.group_size))
            return [*even(active, budget).tolist(), *[0] * (len(states) - active)]
        values = [value[0] for value in self.value([RolloutTree(state) for state in states])]
        return root_allocation(values, budget).tolist()

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        if self.expansion == 0:
            return [{} for _ in trees]
        blind = self.prefix == "random"
        values = [[0.0] * (1 + len(tree.turns)) for tree in trees] if blind else self.value(trees)
        return [self._expand(tree, value) for tree, value in zip(trees, values, strict=True)]

    def _expand(self, tree: RolloutTree, value: Sequence[float]) -> Mapping[int, int]:
        rollouts = anchors(tree)
        budget = len(rollouts) * self.expansion
        if not any(rollouts):
            return {-1: budget} if budget else {}
        rng = random.Random(f"{self.seed}/{tree.state.id}/{tree.version}")
        if self.prefix == "random":
            turns = [turn for path in rollouts for turn in path]
            return Counter(rng.choice(turns) for _ in range(budget))
        totals = [r for leaf, r in zip(tree.leaves(), self.reward(tree)["total"]) if leaf not in tree.invalid]
        places = [(turn, total) for path, total in zip(rollouts, totals, strict=True) for turn in path]
        rng.shuffle(places)  # so that ties between equally good turns do not always favour the first rollout
        same = same_outcome([value[turn + 1] for turn, _ in places], [total for _, total in places])
        return {turn: int(k) for (turn, _), k in zip(places, prefix_allocation(same, budget), strict=True) if k}


@dataclass(frozen=True, slots=True)
class Pcl:
    """Gives ``group_size`` rollouts to each of the ``prompts`` states whose predicted success is nearest to 1/2."""

    value: Value
    prompts: Annotated[int, Interval(ge=1, le=2**16)] = 32
    group_size: Annotated[int, Interval(ge=1, le=2**16)] = 16

    def __call__(self, states: Sequence[State]) -> list[int]:
        values = [value[0] for value in self.value([RolloutTree(state) for state in states])]
        nearest = sorted(range(len(states)), key=lambda i: (abs(values[i] - 0.5), i))[: self.prompts]
        chosen = set(nearest)
        return [self.group_size if i in chosen else 0 for i in range(len(states))]

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return [{} for _ in trees]
