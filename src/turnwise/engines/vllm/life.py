"""Makes one vLLM server answer: starts it, starts it again, or waits for it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from turnwise.endpoints import Connection, Fault
from turnwise.engines.vllm.faults import ServerError
from turnwise.engines.vllm.local import Process
from turnwise.engines.vllm.patience import Patience

Say = Callable[[str], None]
MUST_RUN = "Start the server with scripts/serve.py, which sets all options that a run needs"
_POLL = 0.5  # seconds between two health checks of a server that is starting
_TELL = 30.0  # seconds between two messages to the user about a server that is starting


class Life:
    """Makes one vLLM server answer: starts it, starts it again, or waits for it.

    Args:
        process: the server's process if this engine started the server, otherwise None.
        tally: counts by name, to which ``restarts`` is added.
        say: callback for messages to the user, one line each.
    """

    def __init__(
        self, connection: Connection, process: Process | None, patience: Patience, tally: Counter[str], say: Say
    ) -> None:
        self.connection, self.process, self.patience, self.tally, self.say = connection, process, patience, tally, say
        self._restarts = 0  # number of restarts since the last answered request
        self.lost: ServerError | None = None  # set from when a remote server is given up until it answers a request

    def answered(self) -> None:
        """Notes that the server has answered a request of the run."""
        self._restarts, self.lost = 0, None

    async def restart(self) -> None:
        """Starts the server again. Several tries may be needed, because a dead process's GPU memory is freed late."""
        assert self.process is not None
        while True:
            self._restarts += 1
            if self._restarts > self.patience.restarts:
                raise ServerError(
                    f"vLLM at {self.connection.url} died {self._restarts} times in a row without answering a request"
                    f"{self.where()}"
                )
            self.tally["restarts"] += 1
            self.say(f"vLLM at {self.connection.url} has died; starting it again (its log: {self.process.log})")
            await asyncio.to_thread(self.process.start)
            try:
                return await self.started()
            except ServerError:
                if self._restarts == self.patience.restarts:
                    raise
                await asyncio.sleep(self.patience.pause(self._restarts, None))

    async def started(self) -> None:
        """Waits for the first answer of a server that the engine has just started."""
        assert self.process is not None
        began = told = time.monotonic()
        while not await self.healthy():
            now = time.monotonic()
            if not self.process.alive():
                raise ServerError(f"vLLM did not start{self.where()}")
            if now - began > self.patience.start_limit:
                self.process.stop()
                raise ServerError(
                    f"vLLM did not answer within {self.patience.start_limit:.0f} s (engine.patience.start_limit)"
                    f"{self.where()}"
                )
            if now - told >= _TELL:
                told = now
                self.say(f"vLLM is starting, {now - began:.0f} s so far (its log: {self.process.log})")
            await asyncio.sleep(_POLL)

    async def back(self, replaceable: Callable[[], bool] = lambda: False) -> bool:
        """Waits at most ``away_limit`` seconds for an answer of a server that the engine did not start.

        Returns whether the server has answered. It returns False as soon as the server has not answered for
        ``health_limit`` seconds and ``replaceable()`` is true, which means that other servers can answer instead.

        Raises:
            ServerError: the server does not answer within ``away_limit`` seconds.
        """
        began, attempt, told, limit = time.monotonic(), 0, False, self.patience.away_limit
        while not await self.healthy():
            attempt += 1
            away = time.monotonic() - began
            if not replaceable() and not told:
                told = True
                self.say(f"vLLM at {self.connection.url} does not answer; the run waits for it")
            if away > min(self.patience.health_limit, limit) and replaceable():
                return False
            if away > limit:
                self.lost = ServerError(
                    f"no vLLM server answered at {self.connection.url} within {limit:.0f} s "
                    f"(engine.patience.away_limit). {MUST_RUN}, or remove its address from engine.urls"
                )
                raise self.lost
            await self.pause(attempt)
        return True

    async def pause(self, attempt: int) -> None:
        """Pauses after the health check number ``attempt`` (the first is 1) of a server that does not answer."""
        await asyncio.sleep(min(self.patience.pause(attempt, None), 5.0))

    async def well_soon(self) -> bool:
        """Returns whether the server's process, which is alive, passes a health check within ``health_limit`` seconds.

        On a busy machine, a healthy server may be slow to answer.
        """
        until = time.monotonic() + self.patience.health_limit
        while time.monotonic() < until and self.process is not None and self.process.alive():
            if await self.healthy():
                return True
            await asyncio.sleep(_POLL)
        return False

    async def healthy(self) -> bool:
        try:
            await self.connection.ask("/health", self.patience.health_limit)
        except Fault:
            return False
        return True

    def where(self) -> str:
        """Returns where the server's log is and how it ends, as the end of a message; of a remote server nothing."""
        if self.process is None:
            return ""
        ending = self.process.ending()
        return f". Its log is {self.process.log}" + (f", which ends in:\n{ending}" if ending else "")
