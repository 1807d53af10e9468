"""TreePO in the form of TRACE's experiments (arXiv:2606.11119, App. E.5): branches at random turns."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.algo.allocators.allocator import anchors
from turnwise.types import RolloutTree, State


@dataclass(frozen=True, slots=True)
class TreePO:
    """Starts ``roots`` rollouts at each state. Then it draws ``branches`` random turns in each of these rollouts and
    starts one continuation after each drawn turn.

    The drawn turns of a rollout are all different if the rollout has enough turns. A rollout whose environment failed
    gets no continuations. If a rollout has no turn to branch at, its continuations start in the other rollouts of the
    state. If no rollout of the state has a turn to branch at, the continuations start at the root.
    """

    roots: int = 4
    branches: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.roots < 1 or self.branches < 0:
            raise ValueError(f"roots must be at least 1 and branches at least 0, got {self.roots} and {self.branches}")

    def __call__(self, states: Sequence[State]) -> list[int]:
        return [self.roots] * len(states)

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return [self._expand(tree) for tree in trees]

    def _expand(self, tree: RolloutTree) -> Mapping[int, int]:
        rollouts = anchors(tree)
        budget = len(rollouts) * self.branches
        if not any(rollouts):
            return {-1: budget} if budget else {}
        rng = random.Random(f"{self.seed}/{tree.state.id}/{tree.version}")
        turns = [turn for path in rollouts if path for turn in _draw(rng, path, self.branches)]
        everywhere = [turn for path in rollouts for turn in path]
        turns += [rng.choice(everywhere) for _ in range(budget - len(turns))]
        return Counter(turns)


def _draw(rng: random.Random, path: Sequence[int], count: int) -> list[int]:
    """Returns ``count`` random turns of ``path``, each of which is drawn as often as any other, or once more."""
    drawn: list[int] = []
    while len(drawn) < count:
        drawn += rng.sample(path, min(len(path), count - len(drawn)))
    return drawn
