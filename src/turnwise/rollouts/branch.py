"""Defines the data of one running rollout of a tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.envs.environment import Session
from turnwise.rollouts.seeds import seed_of
from turnwise.types import RolloutTree


@dataclass(slots=True, eq=False)
class Branch:
    """A running rollout, which starts at its *anchor*: a turn of the tree, or the root (-1)."""

    tree: RolloutTree
    number: int  # the rollouts of one call of ``Player.play`` are numbered in the order in which they begin
    anchor: int  # the turn after which the rollout starts; part of the seed of its draws
    branch: int  # a number that is unique among the rollouts that start at this anchor
    origin: int  # the engine's node (a stored prefix) at the anchor
    actions: tuple[str, ...]  # all actions from the start of the task up to the anchor
    tokens: int  # the number of tokens up to the anchor
    attempt: int = 0  # how often the rollout was restarted because its environment failed
    parent: int = -1  # index of the turn that the rollout continues, or -1 (the root)
    node: int = -1  # the engine's node for the rollout's history
    session: Session | None = None  # the environment's episode; None if single actions are judged without a step
    turns: list[int] = field(default_factory=list)  # indices of the rollout's turns, including failed attempts
    depth: int = 0  # the number of turns since the root
    reached: int = 0  # the number of turns since the root that the environment has answered
    length: int = 0  # the number of tokens of the history of this rollout

    def seed(self, key: object) -> int:
        """Returns the seed with which the next action is drawn; ``key`` is the key of the collection."""
        attempt = [f"attempt {self.attempt}"] * bool(self.attempt)
        return seed_of(key, self.tree.state.id, self.anchor, self.branch, self.depth, *attempt)
