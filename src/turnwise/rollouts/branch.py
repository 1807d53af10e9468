"""One live rollout of a tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.envs.environment import Session
from turnwise.rollouts.seeds import seed_of
from turnwise.types import RolloutTree


@dataclass(slots=True, eq=False)
class Branch:
    """A rollout from its anchor on: the turn of the tree that it continues, or the root (-1)."""

    tree: RolloutTree
    number: int  # in the order in which the rollouts of a call begin
    anchor: int  # with ``branch``, it names the draws
    branch: int  # a number that no earlier branch of the tree has had
    origin: int  # the engine's node at the anchor
    actions: tuple[str, ...]  # taken up to the anchor
    tokens: int  # of the history up to there
    attempt: int = 0  # how often it was restarted
    parent: int = -1  # turn index that it continues now; -1 at the root
    node: int = -1  # the engine's
    session: Session | None = None  # None if a single action is judged and the environment never steps
    turns: list[int] = field(default_factory=list)  # that it has written, failed attempts included
    depth: int = 0  # turns taken since the root
    reached: int = 0  # of these, turns that the environment has answered
    length: int = 0  # tokens of its history

    def seed(self, key: object) -> int:
        """Returns the seed of its next action in the collection ``key``."""
        attempt = [f"attempt {self.attempt}"] * bool(self.attempt)
        return seed_of(key, self.tree.state.id, self.anchor, self.branch, self.depth, *attempt)
