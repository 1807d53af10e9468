"""One live rollout of a tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.envs.environment import Session
from turnwise.rollouts.seeds import seed_of
from turnwise.types import RolloutTree


@dataclass(slots=True, eq=False)
class Branch:
    """A rollout that starts at its anchor, which is a turn of the tree or the root (-1)."""

    tree: RolloutTree
    number: int  # its place in the order in which the rollouts of a call begin
    anchor: int  # together with ``branch``, it names the draws
    branch: int  # a number that no earlier branch of the tree has had
    origin: int  # the engine's node at the anchor
    actions: tuple[str, ...]  # the actions up to the anchor
    tokens: int  # the number of tokens up to the anchor
    attempt: int = 0  # the number of restarts
    parent: int = -1  # the turn that it continues now; -1 at the root
    node: int = -1  # the engine's node
    session: Session | None = None  # None if a single action is judged and the environment never steps
    turns: list[int] = field(default_factory=list)  # the turns that it has written, including failed attempts
    depth: int = 0  # the number of turns since the root
    reached: int = 0  # the number of these turns that the environment has answered
    length: int = 0  # the number of tokens of its history

    def seed(self, key: object) -> int:
        """Returns the seed of its next action in the collection ``key``."""
        attempt = [f"attempt {self.attempt}"] * bool(self.attempt)
        return seed_of(key, self.tree.state.id, self.anchor, self.branch, self.depth, *attempt)
