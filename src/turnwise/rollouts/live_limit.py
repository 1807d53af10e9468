"""Limits how many rollouts run at the same time, for environments in which each running rollout needs a process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnwise.engines.sampling_schedule import Schedule


class Room:
    """Lets groups of rollouts begin in the order of their arrival, so that at most ``most`` rollouts run at once.

    A group is admitted as a whole, because a gate waits for all rollouts of a group. The schedule does not count a
    waiting group as running.

    Args:
        most: greatest number of live rollouts. A larger group is admitted alone. None means no limit.
        schedule: the engine's schedule, which decides when actions are sampled.
    """

    def __init__(self, most: int | None, schedule: Schedule) -> None:
        self.most, self.schedule = most, schedule
        self._live = 0
        self._waiting: deque[tuple[int, object, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, count: int, member: object) -> AsyncIterator[None]:
        """Waits until ``count`` rollouts of the group ``member`` are admitted. The rollouts count as live within the
        ``async with`` block.
        """
        if self._waiting or not self._fits(count):
            entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((count, member, entered))
            self.schedule.leave(member)
            await entered
        else:
            self._live += count
        try:
            yield
        finally:
            self._live -= count
            while self._waiting and self._fits(self._waiting[0][0]):
                wanted, other, entered = self._waiting.popleft()
                self._live += wanted
                self.schedule.enter(other)  # here, so that the schedule does not seem idle before the group runs
                entered.set_result(None)

    def _fits(self, count: int) -> bool:
        return self.most is None or self._live == 0 or self._live + count <= self.most
