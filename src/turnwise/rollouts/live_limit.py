"""Limits how many rollouts are live at once, for environments in which each of them holds a process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnwise.engines.schedule import Schedule


class Room:
    """Lets whole groups in, in the order of their arrival, because a gate waits for all rollouts of its group.

    A waiting group does not count as running; it counts again as soon as it is let in. Draws do not depend on which
    rollouts are live.

    Args:
        most: greatest number of live rollouts; a larger group is live alone. None: no limit.
        schedule: the engine's schedule.
    """

    def __init__(self, most: int | None, schedule: Schedule) -> None:
        self.most, self.schedule = most, schedule
        self._live = 0
        self._waiting: deque[tuple[int, object, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, count: int, member: object) -> AsyncIterator[None]:
        """Waits until there is room for ``count`` rollouts of the group ``member``, and holds the room."""
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
                self.schedule.enter(other)  # at once, so that nobody finds the schedule idle in between
                entered.set_result(None)

    def _fits(self, count: int) -> bool:
        return self.most is None or self._live == 0 or self._live + count <= self.most
