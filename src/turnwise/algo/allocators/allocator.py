"""The interface of an allocator, which decides how many rollouts start where, and allocators without a predictor: the
same number everywhere, and TreePO in the form of TRACE's experiments (arXiv:2606.11119, App. E.5).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from annotated_types import Interval

from turnwise.types import RolloutTree, State


class Allocator(Protocol):
    def __call__(self, states: Sequence[State]) -> list[int]:
        """Returns how many rollouts to start at each state, before any rollout is sampled; 0 skips the state."""
        ...

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        """Returns how many further rollouts to start in each tree, as a mapping from turn index to count. Index -1 is
        the root. The method is called when the rollouts from the roots have ended.

        Each tree is passed in only one call. If a call passes several trees, the result for a tree must not depend on
        the other trees.
        """
        ...


def anchors(tree: RolloutTree) -> list[list[int]]:
    """Returns the turns at which each rollout can branch: all turns but the last (TRACE Eq. 7). Rollouts whose
    environment failed are left out.
    """
    return [tree.path(leaf)[:-1] for leaf in tree.valid_leaves()]


@dataclass(frozen=True, slots=True)
class Uniform:
    """Starts ``group_size`` rollouts (GRPO's G) at each state, all from the root.

    A group of one rollout has no baseline, so advantage rules that compare rollouts learn nothing from it.
    """

    group_size: Annotated[int, Interval(ge=1, le=2**16)] = 8

    def __call__(self, states: Sequence[State]) -> list[int]:
        return [self.group_size] * len(states)

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return [{} for _ in trees]


@dataclass(frozen=True, slots=True)
class TreePO:
    """Starts ``roots`` rollouts at each state. Then it draws ``branches`` random turns in each of these rollouts and
    starts one continuation after each drawn turn.

    The drawn turns of a rollout are all different if the rollout has enough turns. A rollout whose environment failed
    gets no continuations. If a rollout has no turn to branch at, its continuations start in the other rollouts of the
    state. If no rollout of the state has a turn to branch at, the continuations start at the root.
    """

    roots: Annotated[int, Interval(ge=1, le=2**16)] = 4
    branches: Annotated[int, Interval(ge=0, le=2**16)] = 2
    seed: int = 0

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
    drawn: list[int] = []
    while len(drawn) < count:
        drawn += rng.sample(path, min(len(path), count - len(drawn)))
    return drawn
