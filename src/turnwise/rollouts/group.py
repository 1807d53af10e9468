"""One rollout tree while it is sampled: its first rollouts, its gate, and the branches that the allocator adds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.algo.gates.gate import Gate
from turnwise.engines.schedule import Schedule
from turnwise.rollouts.branch import Branch
from turnwise.types import RolloutTree

Start = Callable[[RolloutTree, int, int], Sequence[Branch]]
"""A tree, one of its turns (-1: its root) and how many rollouts begin there -> the rollouts."""


@dataclass(slots=True, eq=False)
class Group:
    """Args:
    number: in the order of the groups of a call.
    tree: grows while the group runs.
    count: of the first rollouts.
    gate: decides after each step of the first rollouts whether the group is stopped.
    schedule: of the engine.
    start, expand: begin rollouts, and name the turns where further ones begin.
    roll_out: runs a rollout to its end.
    act: takes single actions, which are all that the rollouts do; None: they go on as ``roll_out`` does.
    """

    number: int
    tree: RolloutTree
    count: int
    gate: Gate
    schedule: Schedule
    start: Start
    roll_out: Callable[[Branch, Group], Awaitable[None]]
    expand: Callable[[Group], Awaitable[Mapping[int, int]]]
    act: Callable[[Group, Sequence[Branch]], Awaitable[None]] | None = None
    asked: int = 0  # the last step at which the gate was asked
    _going: dict[Branch, asyncio.Task[None]] = field(default_factory=dict)
    _first: bool = True  # a gate compares first rollouts, because continuations of one are alike

    async def run(self) -> None:
        """Samples the tree to its end."""
        first = self.start(self.tree, -1, self.count)
        await self._all(first)
        self._first = False
        if self.tree.turns and not self.tree.stopped:
            if not self.schedule.repeats:
                in_order(self.tree, first)
            branches = await self.expand(self)
            await self._all([r for turn, count in branches.items() for r in self.start(self.tree, turn, count)])
        self.schedule.leave(self)

    def goes_on(self, branch: Branch) -> bool:
        """Asks the gate where the slowest rollout has reached a new step; returns whether ``branch`` takes another turn."""
        branch.reached = branch.depth
        if self._first and not self.tree.stopped:
            reached = min((other.reached for other in self._going), default=0)
            while self.asked < reached and not self.tree.stopped:
                self.asked += 1
                self.tree.stopped = self.gate(self.tree, self.asked)
            if self.tree.stopped:
                for other, task in self._going.items():
                    if other is not branch:
                        task.cancel()
        return not self.tree.stopped

    async def _all(self, branches: Sequence[Branch]) -> None:
        if self.act is not None:
            await self.act(self, branches)
            return
        if not branches:
            return
        for branch in branches:
            self.schedule.enter(branch.number)
            self._going[branch] = asyncio.create_task(self._one(branch))
        tasks = list(self._going.values())
        self.schedule.leave(self)  # the last rollout to end lets the group run again
        await asyncio.gather(*tasks)

    async def _one(self, branch: Branch) -> None:
        try:
            await self.roll_out(branch, self)
        except asyncio.CancelledError:
            if not self.tree.stopped:
                raise
        finally:
            del self._going[branch]
        if self._going:
            self.goes_on(branch)
        else:
            self.schedule.enter(self)
        self.schedule.leave(branch.number)


def in_order(tree: RolloutTree, branches: Sequence[Branch]) -> None:
    """Puts the turns of a tree's first rollouts into the order of rounds, whoever was first to take them.

    A turn's number names the draws of the rollouts that branch there, so it must not depend on time.
    """
    written = [(place, branch.branch, turn) for branch in branches for place, turn in enumerate(branch.turns)]
    order = [turn for _, _, turn in sorted(written)]
    place_of = {turn: place for place, turn in enumerate(order)} | {-1: -1}
    tree.turns[:] = [tree.turns[turn] for turn in order]
    for turn in tree.turns:
        turn.parent = place_of[turn.parent]
    tree.invalid = {place_of[turn] for turn in tree.invalid}
