"""The interface by which a rollout group is stopped before its end."""

from __future__ import annotations

from typing import Protocol

from turnwise.types import GateDecision, RolloutTree


class Gate(Protocol):
    def __call__(self, tree: RolloutTree) -> bool:
        """Whether to stop the tree. Asked after each turn, when every unfinished rollout of the tree has taken it.

        Not asked again once the tree's first rollouts have ended: continuations of one rollout would look alike.

        A gate that has decided says so in ``tree.looks`` and changes nothing else of the tree.
        """
        ...


def noted(tree: RolloutTree, look: GateDecision | None) -> bool:
    """Write a look on its tree, for reports; whether it stops the tree. None: this was not the moment to look."""
    if look is None:
        return False
    tree.looks.append(look)
    return look.stop
