"""Controls one vLLM server: loads weights, sends requests, and restores the server after failures.

A remote server that does not answer for ``health_limit`` seconds is set aside if another server can answer instead. It
then gets no requests until it answers again and has loaded the current weights (:meth:`Server._return`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from turnwise.endpoints import Connection, Fault
from turnwise.engines.engine import Sample
from turnwise.engines.vllm.completions import sample_of
from turnwise.engines.vllm.faults import AwayError, ServerError
from turnwise.engines.vllm.life import MUST_RUN, Life, Say
from turnwise.engines.vllm.local import SERVED, Process
from turnwise.engines.vllm.patience import Attempts, Patience
from turnwise.engines.vllm.save_weights import Snapshot
from turnwise.engines.vllm.served_weights import Holding


class Server:
    """Controls one vLLM server. It must be used in only one event loop.

    ``incarnation`` is incremented whenever weights are loaded into the server, for example after a restart. With full
    weights, an answer is accepted only if ``incarnation`` is the same before and after the request. So no action is
    sampled with other weights than those recorded for it.

    Args:
        process: the server's process if this engine started the server, otherwise None.
        max_length: greatest number of tokens of a history including its last action.
        say: callback for messages to the user, one line each.
    """

    def __init__(
        self, connection: Connection, process: Process | None, patience: Patience, max_length: int, say: Say
    ) -> None:
        self.connection, self.process, self.patience = connection, process, patience
        self.holding = Holding(connection, patience.health_limit, patience.attempt_limit)
        self.max_length, self.say = max_length, say
        self.snapshot: Snapshot | None = None  # the newest weights
        self.holds: list[Snapshot] = []  # weights that the server must have: adapters, or one set of full weights
        self._unused: list[Snapshot] = []  # earlier weights, which may still be loaded
        self.base, self.root = SERVED, ""  # the base model's served name, and the path of its weights
        self.incarnation = 0
        self.tally: Counter[str] = Counter()
        self.life = Life(connection, process, patience, self.tally, say)
        self._told_to_wait = False  # whether the user knows that the server asks to wait
        self._restoring = asyncio.Lock()
        self.others: Sequence[Server] = ()  # servers that can answer instead of this one
        self.aside = False  # whether the server does not answer and the others get its requests
        self._asking: set[asyncio.Timeout] = set()  # one for each completion request that waits for its answer
        self._returning: asyncio.Task[None] | None = None
        self.places = asyncio.Semaphore(patience.concurrency)  # each request in progress has acquired it

    # -- requests ------------------------------------------------------------------------------------------------------

    def model(self, snapshot: Snapshot) -> str:
        """Returns the model name that selects the weights ``snapshot`` in a request."""
        return snapshot.name if snapshot.adapter else self.base

    async def complete(self, request: dict[str, Any], attempts: Attempts) -> Sample:
        """Sends a completion request and returns the sampled action.

        If the server dies, the request is repeated with the same seed and weights. ``attempts`` counts the failed
        attempts of the request. The caller must have acquired the semaphore ``places``.

        Raises:
            ServerError: all attempts failed, or the server refuses the request.
            AwayError: the server is set aside, and another server must answer.
        """
        while True:
            if self.aside:
                raise AwayError
            incarnation = self.incarnation
            try:
                answer = await self._ask(request)
                sample = sample_of(answer, request, self.snapshot.vocabulary if self.snapshot else 0)
                if not await self._still_holds(incarnation):
                    raise Fault("missing", "the server's weights were loaded again during the request")
            except Fault as fault:
                await self._recover(fault, attempts, incarnation)
            else:
                self.tally["requests"] += 1
                self.life.answered()
                return sample

    async def _ask(self, request: dict[str, Any]) -> bytes:
        """Returns the answer to a completion request. Raises AwayError as soon as the server is set aside."""
        try:
            async with asyncio.timeout(None) as waiting:
                self._asking.add(waiting)
                try:
                    return await self.connection.ask("/v1/completions", self.patience.attempt_limit, request)
                finally:
                    self._asking.discard(waiting)
        except TimeoutError:
            raise AwayError from None

    async def _still_holds(self, incarnation: int) -> bool:
        """Returns whether the server still has the weights that it had when a request was sent.

        With an adapter, the server is not asked, because the request selects the adapter by name.
        """
        if self.snapshot is None or self.snapshot.adapter:
            return True
        return await self.holding.has(self.snapshot) and incarnation == self.incarnation

    async def _recover(self, fault: Fault, attempts: Attempts, incarnation: int) -> None:
        """Pauses after a failed attempt and restores the server if needed.

        Raises:
            ServerError: another attempt makes no sense, because the server refuses the request or no attempt is left.
            AwayError: the server is set aside.
        """
        self.tally[f"faults/{fault.kind}"] += 1
        if fault.kind == "rejected":
            raise ServerError(f"vLLM at {self.connection.url} refuses a request of this run ({fault.whole})") from None
        if attempts.exhausted(fault):
            raise ServerError(
                f"vLLM at {self.connection.url} failed a request {attempts.failed} times ({attempts.limit}); the last "
                f"failure was {fault.whole}{self.life.where()}"
            ) from None
        if fault.asks_to_wait and attempts.failed >= self.patience.attempts and not self._told_to_wait:
            self._told_to_wait = True
            most = f"at most {self.patience.away_limit:.0f} s ({attempts.limit})"
            self.say(f"vLLM at {self.connection.url} asks to wait ({fault}); the run waits {most}")
        self.tally["retries"] += 1
        await asyncio.sleep(self.patience.pause(attempts.failed, fault.after))
        if fault.kind not in ("rate_limited", "garbage"):
            await self.restore(incarnation)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Starts the server if the engine owns it, waits until it answers, and checks that a run can use it.

        Raises:
            ServerError: the server does not start, does not answer, or does not meet the run's requirements.
        """
        if self.process is not None:
            self.process.start()
            await self.life.started()
        else:
            await self.life.back()
        attempts = Attempts(self.patience)
        while True:
            try:
                self.base, self.root = await self.holding.examine(self.max_length)
                return
            except Fault as fault:
                if fault.kind in ("rejected", "missing") or attempts.exhausted(fault):
                    where = f". {MUST_RUN}" if self.process is None else self.life.where()
                    raise ServerError(
                        f"vLLM at {self.connection.url} does not meet the requirements of a run: {fault.whole}{where}"
                    ) from None
                await asyncio.sleep(self.patience.pause(attempts.failed, fault.after))
                if fault.kind == "unreachable":  # the server stopped answering during the check
                    if self.process is None:
                        await self.life.back()
                    elif not self.process.alive():
                        await self.life.restart()

    async def close(self) -> None:
        """Ends the server if the engine started it. Otherwise only the engine's adapters are unloaded."""
        if self.process is not None:
            self.process.stop()
        else:
            for snapshot in [] if self.aside else self.holds:
                await self._drop(snapshot)
        self.snapshot, self.holds = None, []
        await self.connection.close()

    async def restore(self, incarnation: int) -> None:
        """Waits for the server or restarts it, and loads the weights that it must have.

        Several requests may call this method at the same time after one failure; the server is then restored only once.
        ``incarnation`` is the value that the caller read before its failed request.

        Raises:
            ServerError: the server does not answer again.
            AwayError: the server is set aside.
        """
        async with self._restoring:
            if self.aside:
                raise AwayError
            if incarnation != self.incarnation:
                return
            if self.life.lost:  # another request has waited long enough
                raise self.life.lost
            if not await self.life.healthy():
                if self.process is None:
                    if not await self.life.back(lambda: any(not other.aside for other in self.others)):
                        self._set_aside()
                        raise AwayError
                elif self.process.alive() and await self.life.well_soon():
                    pass
                else:
                    await self.life.restart()
            try:
                await self._ensure()
            except Fault as fault:  # the server failed again; the caller's next attempt restores it
                self.tally[f"faults/{fault.kind}"] += 1

    def _set_aside(self) -> None:
        """Gives the requests in progress to the other servers, and waits in the background for the server's return."""
        self.aside = True
        self._unused += self.holds  # if it only hangs, it still has them when it answers again
        self.tally["set_aside"] += 1
        self.say(
            f"warning: vLLM at {self.connection.url} has not answered for {self.patience.health_limit:.0f} s "
            "(engine.patience.health_limit); the other servers get its requests until it answers again"
        )
        now = asyncio.get_running_loop().time()
        for waiting in self._asking:
            waiting.reschedule(now)
        self._returning = asyncio.create_task(self._return())

    async def _return(self) -> None:
        """Waits until the server, which is set aside, answers again, and loads the weights that it must have.

        If the engine gets newer weights meanwhile, these are loaded too, before the server gets a request.
        """
        attempt, told = 0, False
        while self.aside:
            attempt += 1
            await self.life.pause(attempt)
            holds = self.holds
            try:
                if not await self.life.healthy():
                    continue
                self.base, self.root = await self.holding.examine(self.max_length)
                async with self._restoring:
                    self._unused += self.holds  # newer weights may replace them while they are loaded
                    await self._ensure()
            except Fault as fault:
                if fault.kind in ("rejected", "missing") and holds is self.holds and not told:
                    told = True
                    self.say(
                        f"warning: vLLM at {self.connection.url} answers again, but a run cannot use it: "
                        f"{fault.whole}. {MUST_RUN}"
                    )
                continue
            self.aside = holds is not self.holds
        self.say(f"vLLM at {self.connection.url} answers again, has the current weights, and gets requests again")
        await self._drop_others()

    # -- weights -------------------------------------------------------------------------------------------------------

    async def load(self, snapshot: Snapshot, beside: Sequence[Snapshot] = ()) -> None:
        """Loads the weights ``snapshot``. The adapters in ``beside`` stay loaded; all other adapters are unloaded.

        A server that is set aside, or is set aside meanwhile, loads the weights later, when it answers again.

        Raises:
            ServerError: the server cannot load the weights, or does not answer again after a failure.
        """
        before, self.holds, self.snapshot = self.holds, [*beside, snapshot], snapshot
        if self.aside:
            return
        self._unused += before
        self.life.lost = None  # a caller that loads weights once more waits once more
        if self.process is not None and not snapshot.adapter:
            self.process.model = str(snapshot.folder)  # a restart loads these weights
        attempts = Attempts(self.patience)
        while True:
            incarnation = self.incarnation
            try:
                async with self._restoring:  # a request that failed meanwhile may restore the server
                    await self._ensure()
                break
            except Fault as fault:
                try:
                    await self._recover(fault, attempts, incarnation)
                except AwayError:
                    return
        await self._drop_others()

    async def _ensure(self) -> None:
        for snapshot in self.holds:
            if not await self.holding.has(snapshot):
                await self.holding.put(snapshot)
                self.incarnation += 1

    async def _drop_others(self) -> None:
        """Unloads the earlier adapters that the server need not have any longer."""
        unused, self._unused = self._unused, []
        for other in dict.fromkeys(unused):
            if other not in self.holds:
                await self._drop(other)

    async def _drop(self, snapshot: Snapshot) -> None:
        try:
            await self.holding.drop(snapshot)
        except Fault:  # if the server died, the adapter is gone; an adapter that stays costs little memory
            self.tally["not_unloaded"] += 1
