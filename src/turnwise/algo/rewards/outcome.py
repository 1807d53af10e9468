"""The outcome reward: the result of the whole episode."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from turnwise.algo.rewards.reward import recorded
from turnwise.types import Rewards, RolloutTree


@dataclass(frozen=True, slots=True)
class Outcome:
    """Returns the reward ``outcome`` of each leaf, which is also its ``total``.

    With ``of=won`` the outcome is 1 if the environment reported the episode as won, else 0. With ``of=return`` the
    outcome is the sum of the environment's rewards along the path.
    """

    of: Literal["won", "return"] = "won"

    def __post_init__(self) -> None:
        if self.of not in ("won", "return"):
            raise ValueError(f"of must be won or return, got {self.of!r}")

    @property
    def most(self) -> float | None:
        """Returns the greatest possible reward: 1 with ``of=won``, None (unknown) with ``of=return``."""
        return 1.0 if self.of == "won" else None

    def __call__(self, tree: RolloutTree) -> Rewards:
        """Raises a ValueError if ``of=won`` and a leaf has no key ``won`` although its environment did not fail."""
        if self.of == "won":
            values = recorded(
                tree, "won", "The environment must report this key with every step. reward.of=return does not need it"
            )
        else:
            values = [
                math.nan if leaf in tree.invalid else math.fsum(tree.turns[i].reward for i in tree.path(leaf))
                for leaf in tree.leaves()
            ]
        return {"outcome": values, "total": values}
