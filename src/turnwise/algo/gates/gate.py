"""The interface of a gate, which may stop a group of rollouts before its end."""

from __future__ import annotations

from collections.abc import Collection

from turnwise.algo.gates.prefixes import Prefixes, group_at
from turnwise.types import GateDecision, RolloutTree


class Gate:
    """Base class of all gates. A gate decides whether to stop the rollouts of a tree early. It appends its decisions to
    ``tree.looks`` and changes nothing else in the tree.
    """

    __slots__ = ()

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        """Returns whether to stop the tree. The gate is called once for each ``step`` (turns since the root), in order.

        The gate is called when every rollout from the root has taken ``step`` turns or has ended, and at least one of
        them has not ended. Some rollouts may have taken more turns. The gate is not called after all rollouts from
        the root have ended: only continuations of these rollouts follow, and continuations agree because they share a
        prefix.
        """
        raise NotImplementedError

    def looks_at(self, step: int) -> bool:
        """Returns whether rollouts wait after ``step`` turns for the gate's decision (``engine.schedule=free``)."""
        return False

    def early(self, tree: RolloutTree, step: int, behind: Collection[int]) -> bool | None:
        """Returns the decision at ``step`` if it is certain before all rollouts from the root have reached ``step``,
        else None.

        Args:
            tree: a tree in which at least one rollout has taken ``step`` turns and goes on.
            step: the step at which the gate decides.
            behind: the last turn of each rollout that has not reached ``step`` (-1 if the rollout has taken no turn
                yet). The decision must hold whatever these rollouts do, unless their environment fails.
        """
        return None

    def at_end(self, tree: RolloutTree) -> bool:
        """Returns whether to drop a tree that was not stopped and whose rollouts from the root have all ended."""
        return False


class AtStep(Gate):
    """A gate that decides when the rollouts of a group have taken ``k`` turns. The decision is based on these turns. A
    subclass that overrides :meth:`looks_at` can decide at other steps.

    ``over`` says whether the gate also decides on a group whose rollouts have all ended by then. No rollout of that
    group is left to stop, but the group can still be left out of the update. The second tier of arXiv:2605.05802 does
    this: it computes d_K (mean edit distance of the first K actions) from a buffer of finished rollouts.
    """

    __slots__ = ()
    k: int
    over: bool = False

    def looks_at(self, step: int) -> bool:
        return step == self.k

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        """Returns the gate's decision about ``tree``. ``group`` holds the first turns of the tree's rollouts."""
        raise NotImplementedError

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        group = group_at(tree, step) if self.looks_at(step) else None
        return group is not None and noted(tree, self.decision(tree, group))

    def at_end(self, tree: RolloutTree) -> bool:
        group = group_at(tree, self.k, over=True) if self.over and not tree.looks else None
        return group is not None and noted(tree, self.decision(tree, group))


def check_settings(k: int, **shares: float) -> None:
    """Raises a ValueError that names the setting if ``k`` is below 1, or if another setting is not in [0, 1]."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {value}")


def noted(tree: RolloutTree, decision: GateDecision) -> bool:
    """Appends a gate's decision to ``tree.looks``, which reports read. Returns whether the decision stops the tree."""
    tree.looks.append(decision)
    return decision.stop
