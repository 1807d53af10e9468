"""Bounds how many rollouts are live at once, where each of them holds a process of the environment."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnwise.engines.schedule import Schedule


class Room:
    """Lets whole groups in, in the order in which they come, because a gate waits for all rollouts of its group.

    A group that waits does not count as running, and counts again as soon as it is let in. Draws do not depend on who is live.

    Args:
        most: rollouts that are live at once; a larger group is live alone. None: there is no bound.
        schedule: of the engine.
    """

    def __init__(self, most: int | None, schedule: Schedule) -> None:
        self.most, self.schedule = most, schedule
        self._live = 0
        self._waiting: deque[tuple[int, object, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, count: int, member: object) -> AsyncIterator[None]:
        """Waits until ``count`` rollouts of the group ``member`` have room, and holds it."""
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
                self.schedule.enter(other)  # before anybody can find the schedule idle
                entered.set_result(None)

    def _fits(self, count: int) -> bool:
        return self.most is None or self._live == 0 or self._live + count <= self.most
