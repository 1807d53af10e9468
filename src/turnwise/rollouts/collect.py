"""One iteration, with one loop for all methods: states, rollouts, rewards, credit, packed updates.

states    = select(iteration)               the states at which the policy acts
trees     = play(states)                    samples rollouts, decides where to branch and when to stop
rewards   = reward(tree)                    named rewards for each leaf
credit    = advantage(trees, rewards)       an advantage and a weight for each turn
updates   = pack(trees, credit)             stores each token once; one update per optimiser step

SFT has no rollouts: it trains on demonstrations, as trees with a single path.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

from turnwise.methods.credit import Advantage, credit_all
from turnwise.methods.reward import Reward
from turnwise.rollouts.pack import Update, pack
from turnwise.rollouts.player import seed_of
from turnwise.types import Credit, Rewards, RolloutTree, State

REFILLS = 1_000_000  # refills call ``select`` with numbers from 1,000,000 on, which no iteration reaches

Select = Callable[[int], list[State]]
"""A function that takes the number of an iteration or of a refill and returns its states."""

Play = Callable[[Sequence[State], object], list[RolloutTree]]
"""A function that takes states and a key that seeds all random draws, and returns one tree for each state.

In a run of several processes, each process returns only the trees of its own part of the states.
"""

Played = tuple[RolloutTree, Rewards]

Gather = Callable[[list[Played]], list[Played]]
"""A function that takes the trees of this process and returns the trees of all processes, ordered like the states."""


@dataclass(slots=True)
class Experience:
    """The rollouts, rewards and credit of one iteration. ``trees``, ``rewards`` and ``credits`` have the same order."""

    trees: list[RolloutTree] = field(default_factory=list)
    rewards: list[Rewards] = field(default_factory=list)
    credits: list[Credit] = field(default_factory=list)
    replaced: list[Played] = field(default_factory=list)  # trees that a refill replaced
    skipped: int = 0  # number of states without a rollout
    memory: Mapping[str, float] = field(default_factory=dict)  # what the advantage rule needs at the next iteration
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the advantage rule


@dataclass(frozen=True, slots=True)
class Collector:
    """Collects the experience (rollouts, rewards, credit) of each iteration.

    Args:
        select, play, reward, advantage: the functions that define the method (see the start of this module).
        max_refills: greatest number of refills in an iteration. A refill samples rollouts from further states, to
            replace trees without a learning signal. Only advantage rules with ``zero_variance="refill"`` refill
            (DAPO's dynamic sampling).
        gather: exchanges trees and rewards between processes. Afterwards every process has the trees of all processes,
            so that refills and advantages are equal to those of a run in a single process.
        seed: the run's seed, for the random choice of the states of a refill.
    """

    select: Select
    play: Play
    reward: Reward
    advantage: Advantage
    max_refills: int = 4
    gather: Gather = list
    seed: int = 0

    def collect(self, iteration: int, memory: Mapping[str, float] = MappingProxyType({})) -> Experience:
        """Samples rollouts from the states of this iteration and computes the credit of each turn. ``memory`` is the
        advantage rule's memory after the previous iteration: the values that the rule keeps between iterations.
        """
        wanted = self.select(iteration)
        experience = Experience()
        self._extend(experience, wanted, (iteration, 0), memory)
        if getattr(self.advantage, "zero_variance", None) != "refill":
            return experience
        for attempt in range(1, self.max_refills + 1):
            kept_ids = {
                t.state.id for t, credit in zip(experience.trees, experience.credits, strict=True) if _counts(t, credit)
            }
            missing = len(wanted) - len(kept_ids)
            if missing <= 0:
                break
            # The numbers of refills are above the numbers of all iterations, so that no iteration draws the same batch.
            number = REFILLS + iteration * self.max_refills + attempt
            further = [s for s in self.select(number) if s.id not in kept_ids]
            chosen = _some(further, missing, seed_of(self.seed, iteration, "refill", attempt))
            self._extend(experience, chosen, (iteration, attempt), memory)
        _drop_empty(experience)
        return experience

    def _extend(
        self, experience: Experience, states: Sequence[State], key: object, memory: Mapping[str, float]
    ) -> None:
        """Adds trees from ``states`` to ``experience`` and recomputes the credit of all trees, which an advantage rule may
        compare with each other.
        """
        paid: list[Played] = [(tree, self.reward(tree) if tree.turns else {}) for tree in self.play(states, key)]
        whole = self.gather(paid)
        played = [(tree, rewards) for tree, rewards in whole if tree.turns]
        experience.skipped += len(whole) - len(played)
        experience.trees += [tree for tree, _ in played]
        experience.rewards += [rewards for _, rewards in played]
        credited = credit_all(self.advantage, experience.trees, experience.rewards, memory)
        experience.credits, experience.memory, experience.metrics = credited.credits, credited.memory, credited.metrics


def updates_of(
    experience: Experience, steps: int = 1, row_tokens: int = 2048, batch_tokens: int = 8192
) -> list[Update]:
    """Returns one packed update for each of the ``steps`` optimiser steps of an iteration: the trees are divided, in order,
    into parts whose sizes differ by at most one tree. The other arguments are those of :func:`turnwise.rollouts.pack.pack`.
    """
    trees, credits = experience.trees, experience.credits
    ends = [part * len(trees) // steps for part in range(steps + 1)]
    return [pack(trees[low:high], credits[low:high], row_tokens, batch_tokens) for low, high in pairwise(ends)]


def _some(states: Sequence[State], count: int, seed: int) -> list[State]:
    """Returns at most ``count`` of the states, chosen at random because the first states of a batch are early turns more
    often than its states as a whole.
    """
    places = random.Random(seed).sample(range(len(states)), min(count, len(states)))
    return [states[place] for place in sorted(places)]


def _counts(tree: RolloutTree, credit: Credit) -> bool:
    """Returns whether a turn of the tree has a non-zero weight, or a gate stopped the tree. A refill replaces any other
    tree. A stopped tree is not replaced, because sampling a replacement would cost as much as the gate has saved.
    """
    return tree.stopped or any(credit.weight)


def _drop_empty(experience: Experience) -> None:
    whole = list(zip(experience.trees, experience.rewards, experience.credits, strict=True))
    kept = [each for each in whole if _counts(each[0], each[2])]
    experience.replaced += [(tree, rewards) for tree, rewards, credit in whole if not _counts(tree, credit)]
    experience.trees = [tree for tree, _, _ in kept]
    experience.rewards = [rewards for _, rewards, _ in kept]
    experience.credits = [credit for _, _, credit in kept]
