"""Reads the rewards of single turns: either the environment's rewards, or the values of a key in the turns' info."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from turnwise.algo.advantages.advantage import Credited, mean
from turnwise.errors import InputError
from turnwise.types import Credit, Rewards, RolloutTree

PAID = "reward"  # names the environment's reward (Turn.reward); other names are keys of Turn.info, e.g. admissible
METRIC = "turns_paid"


def paid(tree: RolloutTree, leaf: int, of: str) -> list[float]:
    """Returns the reward named ``of`` for each turn of the path to ``leaf`` except the last turn, whose result is the
    outcome; shape (K - 1).

    Raises:
        InputError: a turn has no ``info[of]``.
        ValueError: the reward of a turn is not a finite number.
    """
    return [_payment(tree, turn, of) for turn in tree.path(leaf)[:-1]]


def payments(tree: RolloutTree, leaf: int, total: float) -> list[float]:
    """Returns a reward for each turn of the path to ``leaf``, shape (K). The last turn gets ``total`` minus the
    environment's rewards for the earlier turns, so the result always adds up to ``total``.
    """
    before = paid(tree, leaf, PAID)
    return [*before, total - math.fsum(before)]


def to_go(rewards: Sequence[float], gamma: float) -> list[float]:
    """Returns the discounted rewards-to-go G_k = sum over m >= k of gamma^(m-k) r_m. Input and result have shape (K)."""
    found, rest = [], 0.0
    for reward in reversed(rewards):
        rest = reward + gamma * rest
        found.append(rest)
    return found[::-1]


def credit_and_tell(
    rule: Callable[[RolloutTree, Rewards], Credit],
    of: str,
    trees: Sequence[RolloutTree],
    rewards: Sequence[Rewards],
    memory: Mapping[str, float],
    offset: float,
) -> Credited:
    """Returns the credit of each tree, computed by ``rule`` from that tree alone, and the metric ``turns_paid``.

    The metric is the fraction of valid rollouts in which a turn before the last has a reward other than 0 after
    ``offset`` is added. If the metric is 0, the credit comes from the outcomes alone.
    """
    credits = [rule(tree, rewarded) for tree, rewarded in zip(trees, rewards, strict=True)]
    leaves = [(tree, leaf) for tree in trees if not tree.stopped for leaf in tree.valid_leaves()]
    if not leaves:
        return Credited(credits, memory)
    return Credited(
        credits, memory, {METRIC: mean([any(r + offset for r in paid(tree, leaf, of)) for tree, leaf in leaves])}
    )


def check_discount(gamma: float) -> None:
    """Raises a ValueError if the discount ``gamma`` is outside [0, 1]."""
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}")


def rollout_moments(paths: Collection[Sequence[float]]) -> tuple[float, float]:
    """Returns the mean and the population std of the numbers in ``paths``. A path has one number for each turn of a
    rollout. Each path has the same weight, regardless of its length.
    """
    centre = mean([mean(path) for path in paths])
    return centre, math.sqrt(mean([mean([(value - centre) ** 2 for value in path]) for path in paths]))


def _payment(tree: RolloutTree, turn: int, of: str) -> float:
    if of == PAID:
        value = tree.turns[turn].reward
    elif of in tree.turns[turn].info:
        value = tree.turns[turn].info[of]
    else:
        raise InputError(
            f"advantage.turn_reward: this setting names the key {of!r} of a turn's info, but turn {turn} of state "
            f"{tree.state.id!r} has only the keys {sorted(tree.turns[turn].info)}; name one of these keys, or set "
            f"advantage.turn_reward={PAID} to use the environment's reward"
        )
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(
            f"state {tree.state.id!r}: the reward of turn {turn} ({of}) is {value!r}, which is not a finite number"
        )
    return float(value)
