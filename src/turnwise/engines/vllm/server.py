"""One server as the engine sees it: it holds a snapshot, answers requests, and comes back when it has gone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from turnwise.engines.engine import Sample
from turnwise.engines.vllm.connection import Connection
from turnwise.engines.vllm.faults import Fault, ServerError
from turnwise.engines.vllm.holding import Holding
from turnwise.engines.vllm.local import SERVED, Process
from turnwise.engines.vllm.patience import Patience
from turnwise.engines.vllm.weights import Snapshot
from turnwise.engines.vllm.wire import sample_of

Say = Callable[[str], None]
POLL = 0.5  # s between looks at a server that starts
TELL = 30.0  # s between two lines about it
_MUST_RUN = "Start it with scripts/serve.py, which sets all that a run needs"


class Server:
    """Used by one event loop.

    ``incarnation`` counts how often weights were loaded again because they were gone: an answer counts only if it is the same
    before and after, so that no action is written by other weights than its name says.

    Args:
        connection: to it.
        process: its process where this machine runs it; None: somebody else does.
        patience: see there.
        max_length: tokens of a history with its action.
        say: told in one line what a person may want to know.
    """

    def __init__(
        self, connection: Connection, process: Process | None, patience: Patience, max_length: int, say: Say
    ) -> None:
        self.connection, self.process, self.patience = connection, process, patience
        self.holding = Holding(connection, patience.health_limit, patience.attempt_limit)
        self.max_length, self.say = max_length, say
        self.snapshot: Snapshot | None = None  # the last that was loaded
        self.holds: list[Snapshot] = []  # adapters that are sampled from, or all weights
        self.base, self.root = SERVED, ""  # its base model: the name it goes by, and where the weights lie
        self.incarnation = 0
        self.tally: Counter[str] = Counter()
        self._restarts = 0  # in a row
        self._restoring = asyncio.Lock()
        self._places = asyncio.Semaphore(patience.concurrency)

    # -- requests ------------------------------------------------------------------------------------------------------

    def model(self, snapshot: Snapshot) -> str:
        """Returns the served name that these weights answer to."""
        return snapshot.name if snapshot.adapter else self.base

    async def complete(self, request: dict[str, Any]) -> Sample:
        """The action that a request asks for. A request whose server dies is asked again, under the same seed and weights.

        Raises:
            ServerError: the attempts are used up, or the server refuses.
        """
        async with self._places:
            attempt = 0
            while True:
                attempt += 1
                incarnation = self.incarnation
                try:
                    answer = await self.connection.post("/v1/completions", request, self.patience.attempt_limit)
                    sample = sample_of(answer, request, self.snapshot.vocabulary if self.snapshot else 0)
                    if not await self._still_holds(incarnation):
                        raise Fault("missing", "the weights were loaded again meanwhile")
                except Fault as fault:
                    await self._recover(fault, attempt, incarnation)
                else:
                    self.tally["requests"] += 1
                    self._restarts = 0
                    return sample

    async def _still_holds(self, incarnation: int) -> bool:
        """An adapter's name says whose tokens these are; of reloaded weights the server has to be asked."""
        if self.snapshot is None or self.snapshot.adapter:
            return True
        return await self.holding.has(self.snapshot) and incarnation == self.incarnation

    async def _recover(self, fault: Fault, attempt: int, incarnation: int) -> None:
        """Wait, or bring the server back; returns if another attempt makes sense."""
        self.tally[f"faults/{fault.kind}"] += 1
        if fault.kind == "rejected":
            raise ServerError(f"vLLM at {self.connection.url} refuses a request ({fault})") from None
        if attempt >= self.patience.attempts:
            raise ServerError(
                f"vLLM at {self.connection.url} failed a request {attempt} times, at last with {fault}{self._where()}"
            ) from None
        self.tally["retries"] += 1
        await asyncio.sleep(self.patience.pause(attempt, fault.after))
        if fault.kind not in ("rate_limited", "garbage"):
            await self.restore(incarnation)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start it if it is ours, wait until it answers, and see that it is what a run needs.

        Raises:
            ServerError: it does not start, does not answer, or is another server than a run needs.
        """
        if self.process is not None:
            self.process.start()
            await self._started()
        else:
            await self._back(self.patience.away_limit)
        for attempt in range(1, self.patience.attempts + 1):
            try:
                self.base, self.root = await self.holding.examine(self.max_length)
                return
            except Fault as fault:
                if fault.kind in ("rejected", "missing") or attempt == self.patience.attempts:
                    raise ServerError(
                        f"vLLM at {self.connection.url} does not work as a run needs it ({fault}). {_MUST_RUN}"
                    ) from None
                await asyncio.sleep(self.patience.pause(attempt, fault.after))
                if fault.kind == "unreachable":  # it went while it was asked
                    if self.process is None:
                        await self._back(self.patience.away_limit)
                    elif not self.process.alive():
                        await self._restart()

    async def close(self) -> None:
        """Let go of it: end it if it is ours, else leave it without our adapter."""
        if self.process is not None:
            self.process.stop()
        else:
            for snapshot in self.holds:
                await self._drop(snapshot)
        self.snapshot, self.holds = None, []
        await self.connection.close()

    async def restore(self, incarnation: int) -> None:
        """Have it answer again, with the weights that it must hold; once, however many requests ask for it.

        Raises:
            ServerError: it does not come back.
        """
        async with self._restoring:
            if incarnation != self.incarnation:
                return
            if not await self._healthy():
                if self.process is None:
                    self.say(f"vLLM at {self.connection.url} is away; waiting for it")
                    await self._back(self.patience.away_limit)
                elif self.process.alive() and await self._well_soon():
                    pass
                else:
                    await self._restart()
            try:
                await self._ensure()
            except Fault as fault:  # gone again: whoever asked comes back with its next attempt
                self.tally[f"faults/{fault.kind}"] += 1

    async def _restart(self) -> None:
        """Start it again, and again where it does not start: a GPU's memory comes back some time after its owner died."""
        assert self.process is not None
        while True:
            self._restarts += 1
            if self._restarts > self.patience.restarts:
                raise ServerError(
                    f"vLLM at {self.connection.url} died {self._restarts} times without an answer{self._where()}"
                )
            self.tally["restarts"] += 1
            self.say(f"vLLM at {self.connection.url} has died; starting it again (its log: {self.process.log})")
            await asyncio.to_thread(self.process.start)
            try:
                return await self._started()
            except ServerError:
                if self._restarts == self.patience.restarts:
                    raise
                await asyncio.sleep(self.patience.pause(self._restarts, None))

    async def _started(self) -> None:
        """Wait for a process of ours that has just been started."""
        assert self.process is not None
        began = told = time.monotonic()
        while not await self._healthy():
            now = time.monotonic()
            if not self.process.alive():
                raise ServerError(f"vLLM did not start{self._where()}")
            if now - began > self.patience.start_limit:
                self.process.stop()
                raise ServerError(
                    f"vLLM did not answer within {self.patience.start_limit:.0f} s (engine.patience.start_limit)"
                    f"{self._where()}"
                )
            if now - told >= TELL:
                told = now
                self.say(f"vLLM is starting, {now - began:.0f} s so far (its log: {self.process.log})")
            await asyncio.sleep(POLL)

    async def _back(self, limit: float) -> None:
        """Wait for a server that somebody else runs."""
        began, attempt = time.monotonic(), 0
        while not await self._healthy():
            attempt += 1
            if time.monotonic() - began > limit:
                raise ServerError(
                    f"no vLLM server answers at {self.connection.url} for {limit:.0f} s (engine.patience.away_limit). "
                    f"{_MUST_RUN}"
                )
            await asyncio.sleep(min(self.patience.pause(attempt, None), 5.0))

    async def _well_soon(self) -> bool:
        """Whether a living process answers within the limit; a busy machine makes one slow."""
        until = time.monotonic() + self.patience.health_limit
        while time.monotonic() < until and self.process is not None and self.process.alive():
            if await self._healthy():
                return True
            await asyncio.sleep(POLL)
        return False

    async def _healthy(self) -> bool:
        try:
            await self.connection.get("/health", self.patience.health_limit)
        except Fault:
            return False
        return True

    def _where(self) -> str:
        if self.process is None:
            return ""
        ending = self.process.ending()
        return f". Its log is {self.process.log}" + (f", which ends in:\n{ending}" if ending else "")

    # -- weights -------------------------------------------------------------------------------------------------------

    async def load(self, snapshot: Snapshot, beside: Sequence[Snapshot] = ()) -> None:
        """Answer with these weights, and with the adapters ``beside`` them; others that were there before are unloaded.

        Raises:
            ServerError: the server cannot, or is gone for good.
        """
        before, self.holds, self.snapshot = self.holds, [*beside, snapshot], snapshot
        if self.process is not None and not snapshot.adapter:
            self.process.model = str(snapshot.folder)  # what a restart begins with
        attempt = 0
        while True:
            attempt += 1
            incarnation = self.incarnation
            try:
                await self._ensure()
                break
            except Fault as fault:
                await self._recover(fault, attempt, incarnation)
        for other in before:
            if other not in self.holds:
                await self._drop(other)

    async def _ensure(self) -> None:
        for snapshot in self.holds:
            if not await self.holding.has(snapshot):
                await self.holding.put(snapshot)
                self.incarnation += 1

    async def _drop(self, snapshot: Snapshot) -> None:
        try:
            await self.holding.drop(snapshot)
        except Fault:  # it went with a server that died; one that stays costs a little memory
            self.tally["not_unloaded"] += 1
