"""Samples one rollout tree: runs the rollouts from the root, asks the gate, and runs the branches of the allocator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from turnwise.algo.gates.gate import Gate
from turnwise.engines.sampling_schedule import Schedule
from turnwise.env import Session
from turnwise.rollouts.live_limit import Room
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


Start = Callable[[RolloutTree, int, int], Awaitable[Sequence[Branch]]]
"""A coroutine function that takes a tree, the index of a turn (-1: the root) and a count, and starts that many rollouts."""


@dataclass(slots=True, eq=False)
class Group:
    """The group of rollouts of one tree, while they are sampled.

    Args:
        number: the group's index among the groups of one call of ``Player.play``.
        count: number of rollouts that start at the root. These rollouts are called the first rollouts.
        gate: decides after each step of the first rollouts whether the group is stopped.
        schedule: decides when the engine samples.
        roll_out: function that runs one rollout to its end.
        expand: function that returns a map from the index of a turn to the number of rollouts that start there.
        room: limits the number of rollouts that are live at the same time.
        act: function that samples all rollouts if each rollout is one action. None: ``roll_out`` runs each rollout.
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
    asked: int = 0  # the last step (turns since the root) at which the gate was asked
    past: int = 0  # the last step at which ``Gate.early`` decided to continue, so that no rollout waits there
    _held: dict[Branch, asyncio.Future[None]] = field(default_factory=dict)
    _going: dict[Branch, asyncio.Task[None]] = field(default_factory=dict)
    _first: bool = True  # whether the first rollouts are running; a gate compares only first rollouts

    async def run(self) -> None:
        """Samples the first rollouts and then the rollouts that branch from them. If the gate stops the group, sampling
        ends early.
        """
        async with self.room.of(self.count, self):
            first = await self.start(self.tree, -1, self.count)
            await self._all(first)
        self._first = False
        if self.tree.turns and not self.tree.stopped:
            self.tree.stopped = self.gate.at_end(self.tree)
        if self.tree.turns and not self.tree.stopped:
            if not self.schedule.repeats:
                in_order(self.tree, first)
            branches = await self.expand(self)
            async with self.room.of(sum(branches.values()), self):
                # at once: the numbers of the rollouts must not depend on how fast the environment opens episodes
                begun = await asyncio.gather(*(self.start(self.tree, turn, count) for turn, count in branches.items()))
                await self._all([branch for each in begun for branch in each])
        self.schedule.leave(self)

    async def goes_on(self, branch: Branch) -> bool:
        """Returns whether the rollout ``branch`` may take another turn. If the gate makes a decision at the current
        step of the rollout, the method waits for the decision.
        """
        branch.reached = branch.depth
        self._look(branch)
        if self._holds(branch.depth):
            self._held[branch] = asyncio.get_running_loop().create_future()
            await self._held[branch]
        return not self.tree.stopped

    def _look(self, branch: Branch) -> None:
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
        """Returns whether rollouts that have reached ``step`` must wait for the gate's decision.

        Without waiting, a rollout might take turns that are wasted if the gate stops the group. With the schedule
        ``rounds`` the result is False, because this schedule lets all rollouts wait for the slowest rollout.
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
    """Sorts the turns of a tree's first rollouts by depth and then by rollout.

    The index of a turn is part of the seed of rollouts that branch there, so the index must not depend on timing.
    """
    written = [(place, branch.branch, turn) for branch in branches for place, turn in enumerate(branch.turns)]
    order = [turn for _, _, turn in sorted(written)]
    place_of = {turn: place for place, turn in enumerate(order)} | {-1: -1}
    tree.turns[:] = [tree.turns[turn] for turn in order]
    for turn in tree.turns:
        turn.parent = place_of[turn.parent]
    tree.invalid = {place_of[turn] for turn in tree.invalid}
