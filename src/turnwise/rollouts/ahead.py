"""Steps environments in threads while the policy still samples, for environments that wait for other processes.

An environment of commands, servers or worker processes answers in milliseconds to seconds, during which this process would be
idle. Its steps begin as soon as their actions are written. A rollout has one step at a time, so the order changes no result.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late

from turnwise.envs.environment import EnvironmentFault, Step


class Ahead:
    """Args:
    threads: steps under way at once.
    seconds: the time limit of a step, from when it is waited for; None: no limit.
    """

    def __init__(self, threads: int, seconds: float | None) -> None:
        self.seconds = seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="world")
        self._steps: dict[int, Future[Step]] = {}  # by the place in the batch of the action

    def begin(self, place: int, step: Callable[[], Step]) -> None:
        self._steps[place] = self._pool.submit(step)

    def take(self, place: int) -> Step | None:
        """Waits for the answer to the action of this place; None if it was not begun.

        Raises:
            EnvironmentFault: the environment failed, or does not answer.
        """
        begun = self._steps.pop(place, None)
        if begun is None:
            return None
        try:
            return begun.result(self.seconds)
        except Late:
            raise EnvironmentFault(f"no answer within {self.seconds:g} s") from None

    def close(self) -> None:
        """Cancels the steps that have not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)
