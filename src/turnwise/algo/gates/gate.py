"""The interface of a gate, which may stop a group of rollouts before its end."""

from __future__ import annotations

from collections.abc import Collection

from turnwise.algo.gates.prefixes import Prefixes, group_at
from turnwise.types import GateDecision, RolloutTree


class Gate:
    """It adds its decisions to ``tree.looks`` and changes nothing else of a tree."""

    __slots__ = ()

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        """Returns whether to stop the tree. Called once for each ``step`` (turns since the root), in order.

        It is called when every first rollout has taken that many turns or has ended, and one of them goes on. Some may have gone
        further by then. It is not called once the first rollouts have ended, because continuations of one rollout are alike.
        """
        raise NotImplementedError

    def looks_at(self, step: int) -> bool:
        """Returns whether rollouts are held after ``step`` turns, under ``engine.schedule=free``, until the gate has decided."""
        return False

    def early(self, tree: RolloutTree, step: int, behind: Collection[int]) -> bool | None:
        """Returns its decision at ``step`` if that is certain before all first rollouts have taken so many turns, else None.

        Args:
            tree: of which at least one rollout has taken ``step`` turns and goes on.
            step: at which the gate looks.
            behind: the last turn of each rollout that has not come so far (-1: it has taken none). The decision holds whatever
                they do, unless their environment fails.
        """
        return None

    def at_end(self, tree: RolloutTree) -> bool:
        """Returns whether a tree leaves the update whose first rollouts have all ended, and which the gate has not stopped."""
        return False


class AtStep(Gate):
    """A gate that decides from the rollouts' first turns, after ``k`` of them where :meth:`looks_at` is not overridden.

    ``over``: whether it decides as well on a group whose rollouts have all ended by then. There is nothing to stop, but the group
    leaves the update, as in the second tier of arXiv:2605.05802, which reads d_K from a buffer.
    """

    __slots__ = ()
    k: int
    over: bool = False

    def looks_at(self, step: int) -> bool:
        return step == self.k

    def decision(self, tree: RolloutTree, group: Prefixes) -> GateDecision:
        """Returns the decision on the first turns of a tree."""
        raise NotImplementedError

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        group = group_at(tree, step) if self.looks_at(step) else None
        return group is not None and noted(tree, self.decision(tree, group))

    def at_end(self, tree: RolloutTree) -> bool:
        group = group_at(tree, self.k, over=True) if self.over and not tree.looks else None
        return group is not None and noted(tree, self.decision(tree, group))


def noted(tree: RolloutTree, decision: GateDecision) -> bool:
    """Adds a decision to its tree, for reports, and returns whether it stops the tree."""
    tree.looks.append(decision)
    return decision.stop
