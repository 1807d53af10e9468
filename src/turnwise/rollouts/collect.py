"""One iteration's experience: the loop that every method shares.

    states    = select(iteration)               where to act
    trees     = play(states)                    how often, where to branch, when to stop
    rewards   = reward(tree)                    named, per leaf
    credit    = advantage(tree, rewards)        per turn
    update    = pack(trees, credit)             each token once

No line asks which method is running: a method is the parts that stand here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turnwise.advantages.base import Advantage
from turnwise.rewards.base import Reward
from turnwise.rollouts.pack import Update, pack
from turnwise.types import Credit, Rewards, RolloutTree, State

REFILLS = 1_000_000  # number of the first refill, above every iteration

Select = Callable[[int], list[State]]
"""Iteration or refill number -> its states."""

Play = Callable[[Sequence[State], object], list[RolloutTree]]
"""States and the key that seeds their draws -> one tree a state."""


@dataclass(slots=True)
class Experience:
    """What an iteration collected. The lists are aligned; ``dropped`` counts trees that a refill replaced, ``skipped`` states
    that no rollout was spent on."""

    trees: list[RolloutTree] = field(default_factory=list)
    rewards: list[Rewards] = field(default_factory=list)
    credits: list[Credit] = field(default_factory=list)
    dropped: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Collector:
    """Args:
    select, play, reward, advantage: the parts.
    row_tokens, batch_tokens: see :func:`turnwise.rollouts.pack.pack`.
    max_refills: draws of further states when the advantage asks for a full batch (DAPO's dynamic sampling).
    """

    select: Select
    play: Play
    reward: Reward
    advantage: Advantage
    row_tokens: int = 2048
    batch_tokens: int = 8192
    max_refills: int = 4

    def collect(self, iteration: int) -> Experience:
        """Play the states of this iteration and give each turn its credit."""
        wanted = self.select(iteration)
        experience = self._play(wanted, (iteration, 0))
        if not self.advantage.wants_refill:
            return experience
        for attempt in range(1, self.max_refills + 1):
            missing = len(wanted) - _drop_empty(experience)
            if missing <= 0:
                break
            seen = {tree.state.id for tree in experience.trees}
            # Refills read the order of states far beyond any run, so that no later iteration repeats their draw.
            further = [s for s in self.select(REFILLS + iteration * self.max_refills + attempt) if s.id not in seen]
            extra = self._play(further[:missing], (iteration, attempt))
            experience.trees += extra.trees
            experience.rewards += extra.rewards
            experience.credits += extra.credits
            experience.skipped += extra.skipped
        _drop_empty(experience)
        return experience

    def update(self, experience: Experience) -> Update:
        """The packed micro-batches of one optimiser step."""
        return pack(experience.trees, experience.credits, self.row_tokens, self.batch_tokens)

    def _play(self, states: Sequence[State], key: object) -> Experience:
        played = self.play(states, key)
        trees = [tree for tree in played if tree.turns]
        rewards = [self.reward(tree) for tree in trees]
        credits = [self.advantage(tree, rewarded) for tree, rewarded in zip(trees, rewards, strict=True)]
        return Experience(trees, rewards, credits, skipped=len(played) - len(trees))


def _drop_empty(experience: Experience) -> int:
    """Leave out the trees that carry no weight; answers how many are left."""
    keep = [i for i, credit in enumerate(experience.credits) if any(credit.weight)]
    experience.dropped += len(experience.trees) - len(keep)
    experience.trees = [experience.trees[i] for i in keep]
    experience.rewards = [experience.rewards[i] for i in keep]
    experience.credits = [experience.credits[i] for i in keep]
    return len(keep)
