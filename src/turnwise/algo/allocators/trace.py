"""TRACE (arXiv:2606.11119): spends the rollouts where success and failure are both likely."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from turnwise.algo.allocators.allocator import anchors
from turnwise.algo.allocators.concave import even
from turnwise.algo.allocators.prefix import prefix_allocation, same_outcome
from turnwise.algo.allocators.root import root_allocation
from turnwise.types import Judge, RolloutTree, State, Value


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
    budget: int | None = None
    expansion: int = 2
    root: Literal["predicted", "uniform"] = "predicted"
    prefix: Literal["predicted", "random"] = "predicted"
    group_size: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 2:
            raise ValueError(f"budget must be at least 2, the smallest group, got {self.budget}")
        if self.expansion < 0:
            raise ValueError(f"expansion must be at least 0, got {self.expansion}")
        if self.group_size < 2:
            raise ValueError(f"group_size must be at least 2, got {self.group_size}")
        if self.root not in ("predicted", "uniform"):
            raise ValueError(f"root must be predicted or uniform, got {self.root!r}")
        if self.prefix not in ("predicted", "random"):
            raise ValueError(f"prefix must be predicted or random, got {self.prefix!r}")

    def __call__(self, states: Sequence[State]) -> list[int]:
        """Returns for each state the number m of rollouts to start from its root."""
        if not states:
            return []
        budget = 2 * len(states) if self.budget is None else self.budget
        if self.root == "uniform":
            active = min(len(states), max(1, budget // self.group_size))
            return [*even(active, budget).tolist(), *[0] * (len(states) - active)]
        values = [value[0] for value in self.value([RolloutTree(state) for state in states])]
        return root_allocation(values, budget).tolist()

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        """Returns for each tree how many continuations start at which turn (turn index -> count; -1 is the root)."""
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
