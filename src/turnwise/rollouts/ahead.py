"""What worlds answer while others are still being asked, or the policy still writes: for worlds that wait for somebody else.

A world of commands, servers or worker processes answers in milliseconds to seconds during which nothing here computes. Its steps
begin as soon as their actions are written. A rollout has one step at a time, so what a session sees is the same in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late

from turnwise.envs.environment import EnvironmentFault, Step


class Ahead:
    """Args:
    threads: steps under way at once.
    seconds: that one may take once it is waited for; None: no limit.
    """

    def __init__(self, threads: int, seconds: float | None) -> None:
        self.seconds = seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="world")
        self._steps: dict[int, Future[Step]] = {}  # by the place in the batch of the action

    def begin(self, place: int, step: Callable[[], Step]) -> None:
        self._steps[place] = self._pool.submit(step)

    def take(self, place: int) -> Step | None:
        """The answer to the action of this place; None: it was not begun.

        Raises:
            EnvironmentFault: the world failed, or does not answer.
        """
        begun = self._steps.pop(place, None)
        if begun is None:
            return None
        try:
            return begun.result(self.seconds)
        except Late:
            raise EnvironmentFault(f"no answer within {self.seconds:g} s") from None

    def close(self) -> None:
        """Steps that have not begun never do."""
        self._pool.shutdown(wait=False, cancel_futures=True)
