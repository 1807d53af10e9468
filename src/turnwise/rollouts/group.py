"""Samples one rollout tree: its first rollouts, its gate, and the branches that the allocator adds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.algo.gates.gate import Gate
from turnwise.engines.schedule import Schedule
from turnwise.rollouts.branch import Branch
from turnwise.rollouts.live_limit import Room
from turnwise.types import RolloutTree

Start = Callable[[RolloutTree, int, int], Sequence[Branch]]
"""A function from a tree, one of its turns (-1: its root) and a number of rollouts to rollouts that begin there."""


@dataclass(slots=True, eq=False)
class Group:
    """A rollout tree while it is sampled.

    Args:
        number: its place in the order of the groups of a call.
        tree: grows while the group runs.
        count: the number of first rollouts.
        gate: decides after each step of the first rollouts whether the group is stopped.
        schedule: the engine's schedule.
        start: begins rollouts.
        roll_out: runs a rollout to its end.
        expand: returns the turns at which further rollouts begin, with their numbers.
        room: limits how many rollouts are live.
        act: takes single actions, if the rollouts consist of one action; None: each rollout runs by ``roll_out``.
    """

    number: int
    tree: RolloutTree
    count: int
    gate: Gate
    schedule: Schedule
    start: Start
    roll_out: Callable[[Branch, Group], Awaitable[None]]
    expand: Callable[[Group], Awaitable[Mapping[int, int]]]
    room: Room
    act: Callable[[Group, Sequence[Branch]], Awaitable[None]] | None = None
    asked: int = 0  # the last step at which the gate was asked
    past: int = 0  # the last step that rollouts may pass without waiting although the gate has not been asked
    _held: dict[Branch, asyncio.Future[None]] = field(default_factory=dict)
    _going: dict[Branch, asyncio.Task[None]] = field(default_factory=dict)
    _first: bool = True  # a gate compares only first rollouts, because continuations of one rollout are alike

    async def run(self) -> None:
        """Samples the tree to its end."""
        async with self.room.of(self.count, self):
            first = self.start(self.tree, -1, self.count)
            await self._all(first)
        self._first = False
        if self.tree.turns and not self.tree.stopped:
            self.tree.stopped = self.gate.at_end(self.tree)
        if self.tree.turns and not self.tree.stopped:
            if not self.schedule.repeats:
                in_order(self.tree, first)
            branches = await self.expand(self)
            async with self.room.of(sum(branches.values()), self):
                await self._all([r for turn, count in branches.items() for r in self.start(self.tree, turn, count)])
        self.schedule.leave(self)

    async def goes_on(self, branch: Branch) -> bool:
        """Waits until the gate has decided on the turns of ``branch``, and returns whether it takes another turn."""
        branch.reached = branch.depth
        self._look(branch)
        if self._holds(branch.depth):
            self._held[branch] = asyncio.get_running_loop().create_future()
            await self._held[branch]
        return not self.tree.stopped

    def _look(self, branch: Branch) -> None:
        """Asks the gate if the slowest rollout has reached a new step, after ``branch`` took a turn or ended."""
        if not self._first or self.tree.stopped:
            return
        reached = [other.reached for other in self._going]
        while self.asked < min(reached, default=0) and not self.tree.stopped:
            self.asked += 1
            self.tree.stopped = self.gate(self.tree, self.asked)
        step = max(reached, default=0)
        if self._holds(step):
            behind = [other.parent for other in self._going if other.reached < step]
            decided = self.gate.early(self.tree, step, behind)
            self.tree.stopped = bool(decided)
            self.past = step if decided is False else self.past
        if not self._holds(step):
            held, self._held = self._held, {}
            for waits in held.values():
                waits.set_result(None)
            if self.tree.stopped:
                for other, task in self._going.items():
                    if other is not branch and other not in held:
                        task.cancel()

    def _holds(self, step: int) -> bool:
        """Returns whether rollouts wait at ``step``, so that none takes turns that the gate might make unnecessary.

        With the schedule of rounds, all wait for the slowest anyway.
        """
        waits = self._first and not self.tree.stopped and not self.schedule.repeats
        return waits and step > max(self.asked, self.past) and self.gate.looks_at(step)

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
        self.schedule.leave(self)  # the group counts as running again when the last rollout ends
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
            self._look(branch)
        else:
            self.schedule.enter(self)
        self.schedule.leave(branch.number)


def in_order(tree: RolloutTree, branches: Sequence[Branch]) -> None:
    """Puts the turns of a tree's first rollouts into the order of rounds, whichever was sampled first.

    A turn's number names the draws of the rollouts that branch there, so it must not depend on timing.
    """
    written = [(place, branch.branch, turn) for branch in branches for place, turn in enumerate(branch.turns)]
    order = [turn for _, _, turn in sorted(written)]
    place_of = {turn: place for place, turn in enumerate(order)} | {-1: -1}
    tree.turns[:] = [tree.turns[turn] for turn in order]
    for turn in tree.turns:
        turn.parent = place_of[turn.parent]
    tree.invalid = {place_of[turn] for turn in tree.invalid}
