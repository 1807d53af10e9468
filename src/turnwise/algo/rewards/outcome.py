"""What the whole episode came to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from turnwise.algo.rewards.reward import recorded
from turnwise.types import Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class Outcome:
    """``outcome`` of each leaf: ``won`` is 1 where the environment called the episode won, else 0; ``return`` is the sum
    of what it paid along the path."""

    of: Literal["won", "return"] = "won"

    def __post_init__(self) -> None:
        if self.of not in ("won", "return"):
            raise ValueError(f"of must be won or return, got {self.of!r}")

    @property
    def most(self) -> float | None:
        """The greatest reward: 1 for success; None for a sum of rewards, whose bound is not known."""
        return 1.0 if self.of == "won" else None

    def __call__(self, tree: RolloutTree) -> Rewards:
        """Rewards of ``tree``.

        Raises:
            ValueError: ``of=won`` and a valid leaf does not say whether its episode was won.
        """
        if self.of == "won":
            values = recorded(tree, "won", "Environments report it with every step; reward.of=return does without it")
        else:
            values = [
                math.nan if leaf in tree.invalid else math.fsum(tree.turns[i].reward for i in tree.path(leaf))
                for leaf in tree.leaves()
            ]
        return {"outcome": values, "total": values}
