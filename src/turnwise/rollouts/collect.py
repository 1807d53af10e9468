"""Collects the experience of one iteration, with the same loop for every method.

    states    = select(iteration)               where to act
    trees     = play(states)                    how often, where to branch, when to stop
    rewards   = reward(tree)                    named, per leaf
    credit    = advantage(trees, rewards)       per turn
    updates   = pack(trees, credit)             each token once; one update per optimiser step

No line asks which method is running: a method is defined by the parts that are plugged in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from turnwise.algo.advantages.credit import Advantage, credit_all
from turnwise.algo.rewards.reward import Reward
from turnwise.rollouts.pack import Update, pack
from turnwise.types import Credit, Rewards, RolloutTree, State

REFILLS = 1_000_000  # number of the first refill; greater than the number of any iteration

Select = Callable[[int], list[State]]
"""A function from the number of an iteration or a refill to its states."""

Play = Callable[[Sequence[State], object], list[RolloutTree]]
"""A function from states and the key that seeds their draws to one tree per state (or per state of this process)."""

Played = tuple[RolloutTree, Rewards]

Gather = Callable[[list[Played]], list[Played]]
"""A function from the trees of this process to those of all processes of the run, in the order of the states."""

Memory = Callable[[], Mapping[str, float]]
"""A function that returns what the advantage keeps from one experience to the next."""


@dataclass(slots=True)
class Experience:
    """The result of one iteration's collection. The lists ``trees``, ``rewards`` and ``credits`` are aligned.

    ``replaced`` holds the trees that a refill replaced, with their rewards. ``skipped`` counts states without a
    rollout. ``memory`` is what the advantage needs at the next iteration, and ``metrics`` are its metrics for this one.
    """

    trees: list[RolloutTree] = field(default_factory=list)
    rewards: list[Rewards] = field(default_factory=list)
    credits: list[Credit] = field(default_factory=list)
    replaced: list[Played] = field(default_factory=list)
    skipped: int = 0
    memory: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collector:
    """Collects experiences with the parts of a method.

    Args:
        select, play, reward, advantage: the parts of the method.
        row_tokens, batch_tokens: see :func:`turnwise.rollouts.pack.pack`.
        steps: the number of optimiser steps into which an experience is divided.
        max_refills: how often further states are drawn if the advantage asks for a full batch (DAPO's dynamic
            sampling).
        gather: exchanges trees between processes. Each process computes the rewards of its own trees. Afterwards all
            processes have all trees, so that groups, refills and advantages are those of a single process.
    """

    select: Select
    play: Play
    reward: Reward
    advantage: Advantage
    row_tokens: int = 2048
    batch_tokens: int = 8192
    steps: int = 1
    max_refills: int = 4
    gather: Gather = list

    def collect(self, iteration: int, memory: Memory = dict) -> Experience:
        """Samples from the states of this iteration and gives each turn its credit.

        ``memory`` returns the advantage's memory of the last experience. The function ``memory`` is called only when
        the rollouts have ended, because the last experience may be collected at the same time as this one.
        """
        wanted = self.select(iteration)
        experience = Experience()
        self._extend(experience, wanted, (iteration, 0), memory)
        if not self.advantage.wants_refill:
            return experience
        for attempt in range(1, self.max_refills + 1):
            kept = {
                t.state.id for t, credit in zip(experience.trees, experience.credits, strict=True) if _counts(t, credit)
            }
            missing = len(wanted) - len(kept)
            if missing <= 0:
                break
            # Refills read the order of states far beyond any run, so that no later iteration repeats their draw.
            further = [s for s in self.select(REFILLS + iteration * self.max_refills + attempt) if s.id not in kept]
            self._extend(experience, further[:missing], (iteration, attempt), memory)
        _drop_empty(experience)
        return experience

    def updates(self, experience: Experience) -> list[Update]:
        """Returns the packed micro-batches of each optimiser step.

        The trees are divided in their order into equal parts (up to one tree). A group is one tree and stays whole.
        Credit was computed before, over the whole experience.
        """
        trees, credits = experience.trees, experience.credits
        ends = [part * len(trees) // self.steps for part in range(self.steps + 1)]
        return [
            pack(trees[low:high], credits[low:high], self.row_tokens, self.batch_tokens) for low, high in pairwise(ends)
        ]

    def _extend(self, experience: Experience, states: Sequence[State], key: object, memory: Memory) -> None:
        """Samples from further states, then computes the credit of all trees again, because a rule may compare them."""
        paid: list[Played] = [(tree, self.reward(tree) if tree.turns else {}) for tree in self.play(states, key)]
        whole = self.gather(paid)
        played = [(tree, rewards) for tree, rewards in whole if tree.turns]
        experience.skipped += len(whole) - len(played)
        experience.trees += [tree for tree, _ in played]
        experience.rewards += [rewards for _, rewards in played]
        credited = credit_all(self.advantage, experience.trees, experience.rewards, memory())
        experience.credits, experience.memory, experience.metrics = credited.credits, credited.memory, credited.metrics


def _counts(tree: RolloutTree, credit: Credit) -> bool:
    """Returns whether a tree counts towards the size of the batch: it has weight, or a gate stopped it.

    A stopped tree keeps its place, because a replacement would spend again what the gate saved.
    """
    return tree.stopped or any(credit.weight)


def _drop_empty(experience: Experience) -> None:
    """Moves the trees that do not count towards the batch to ``replaced``."""
    whole = list(zip(experience.trees, experience.rewards, experience.credits, strict=True))
    kept = [(tree, rewards, credit) for tree, rewards, credit in whole if _counts(tree, credit)]
    experience.replaced += [(tree, rewards) for tree, rewards, credit in whole if not _counts(tree, credit)]
    experience.trees = [tree for tree, _, _ in kept]
    experience.rewards = [rewards for _, rewards, _ in kept]
    experience.credits = [credit for _, _, credit in kept]
