"""The interface of a gate, which may stop a group of rollouts before its end."""

from __future__ import annotations

from typing import Protocol

from turnwise.types import GateDecision, RolloutTree


class Gate(Protocol):
    def __call__(self, tree: RolloutTree, step: int) -> bool:
        """Returns whether to stop the tree. Called once for each ``step`` (turns since the root), in order.

        It is called when every first rollout has taken that many turns or has ended, and one of them goes on. Some may have gone
        further by then. It is not called once the first rollouts have ended, because continuations of one rollout are alike.

        A gate adds its decision to ``tree.looks`` and changes nothing else of the tree.
        """
        ...


def noted(tree: RolloutTree, decision: GateDecision | None) -> bool:
    """Adds a decision to its tree, for reports, and returns whether it stops the tree; None: the gate did not decide."""
    if decision is None:
        return False
    tree.looks.append(decision)
    return decision.stop
