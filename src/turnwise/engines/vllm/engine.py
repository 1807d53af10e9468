"""Rollouts from vLLM servers, in an environment of their own, over HTTP: ``engine=vllm``.

A node is a list of ids and the version it was opened under. Keys and values lie with the server, whose prefix cache finds the
history of a node again; a state's rollouts go to one server, so that they share theirs there.

Versions: weights are loaded under a name that holds the version and a digest, an adapter by vLLM's call for it, all weights by
a reload from a folder. ``load_weights`` and ``sample`` exclude each other and the former closes every node, so that nothing which
was written under one version goes on under the next; ``allow_stale`` keeps the nodes. A view (:meth:`VllmEngine.held`) goes on
with the adapter that it began with.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from turnwise.endpoints import Background, key_from
from turnwise.engines.engine import Sample, Sampling, Told
from turnwise.engines.schedule import Named, check_schedule
from turnwise.engines.vllm.connection import Connection
from turnwise.engines.vllm.histories import Histories, History
from turnwise.engines.vllm.local import Local, Process
from turnwise.engines.vllm.patience import Patience
from turnwise.engines.vllm.server import Server
from turnwise.engines.vllm.weights import Snapshot, forget, save
from turnwise.engines.vllm.wire import body_of


class VllmEngine:
    """Args:
    end_ids: tokens that end an action.
    model: folder or id of the base policy, for servers that are started here.
    folder: where weights are handed over, and where servers of this machine write their logs. Every server must see it
        under the same path.
    say: told in one line what a person may want to know.
    urls: of servers that run already; none: ``local`` starts them here.
    local: how.
    patience: how long servers are waited for.
    max_length: tokens of a history with its action.
    allow_stale: whether a history may go on under other weights than those that began it. Its tokens keep the log-probs
        under which they were drawn.
    key_variable: environment variable that holds the servers' token. Servers started here get a random one where it is unset.
    schedule: ``free``, or ``rounds`` (``engines.schedule``).
    """

    served = True

    def __init__(
        self,
        end_ids: Sequence[int],
        model: str,
        folder: str | Path,
        say: Callable[[str], None],
        local: Local,
        patience: Patience,
        urls: Sequence[str] = (),
        max_length: int = 4096,
        allow_stale: bool = False,
        key_variable: str = "TURNWISE_VLLM_KEY",
        schedule: Named = "free",
    ) -> None:
        self.end_ids = frozenset(end_ids)
        self.schedule = check_schedule(schedule)
        self.allow_stale, self.key_variable = allow_stale, key_variable
        self.folder = Path(folder)
        self.model, self.local, self.patience, self.max_length, self.say = model, local, patience, max_length, say
        self.urls = list(urls)
        for url in self.urls:
            Connection(url, None, key_variable, 1)  # a bad address is told before anything starts
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ValueError(f"urls must name each server once, got {', '.join(self.urls)}")
        if not self.urls:
            local.check()
        self.version = -1
        self.servers: list[Server] = []
        self._snapshot: Snapshot | None = None
        self._staged: list[Snapshot] = []  # written and not loaded yet
        self._held: list[Snapshot] = []  # that views sample from
        self._folders = threading.Lock()  # over both, as another thread may load while one is written
        self._background: Background | None = None
        self._tasks: dict[int, asyncio.Task[Sample]] = {}  # by node; of the loop's thread
        self._nodes = Histories()
        self._busy = threading.Lock()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        return self._nodes.open(ids)

    def fork(self, node: int) -> int:
        return self._nodes.fork(node)

    def extend(self, node: int, ids: Sequence[int]) -> None:
        self._nodes[node].ids.extend(ids)

    def close(self, nodes: Sequence[int]) -> None:
        """Ends requests of closed nodes, at the server too; their samples are empty and truncated. Any thread may call it."""
        self._nodes.close(nodes)
        if self._background is not None:
            self._background.submit(self._cancel(list(nodes))).result()

    # -- weights -------------------------------------------------------------------------------------------------------

    def load_weights(self, model: Any, version: int) -> None:
        """Sample from these weights from now on. Starts the servers the first time; waits for a batch that is under way.

        Raises:
            ServerError: a server does not start, is away for too long or cannot take these weights.
            OSError: the weights cannot be written.
        """
        self.stage(model, version)()

    def stage(self, model: Any, version: int) -> Callable[[], None]:
        """Writes the weights now, and returns a function that loads them later, as :meth:`load_weights` does.

        Raises:
            OSError: the weights cannot be written.
        """
        with self._folders:
            snapshot = save(model, version, self.folder / "weights")
            self._staged.append(snapshot)
        return partial(self._load, snapshot)

    def _load(self, snapshot: Snapshot) -> None:
        with self._busy:
            before, self._snapshot = self._snapshot, None  # should a server fail now, half of them have the weights
            background = self._started(snapshot)
            beside = [other for other in dict.fromkeys(self._held) if other != snapshot]
            background.submit(_all([server.load(snapshot, beside) for server in self.servers])).result()
            with self._folders:
                self._staged.remove(snapshot)
                forget(self.folder / "weights", snapshot, before, *beside, *self._staged)
            self._snapshot, self.version = snapshot, snapshot.version
            if not self.allow_stale:
                self._nodes.clear()

    @contextmanager
    def held(self) -> Iterator[VllmEngine]:
        """Gives the engine as it is now, with nodes of its own: it keeps its adapter whatever is loaded here in this block."""
        snapshot = self._snapshot
        assert snapshot is not None and snapshot.adapter
        view = copy(self)
        view._nodes, view._tasks = Histories(), {}
        self._held.append(snapshot)
        try:
            yield view
        finally:
            self._held.remove(snapshot)

    def _started(self, snapshot: Snapshot) -> Background:
        if self._background is not None:
            return self._background
        background = Background("vllm")
        key = key_from(self.key_variable)
        processes: list[Process | None] = [None] * len(self.urls)
        if not self.urls:
            key = key or secrets.token_hex(16)
            model = self.model if snapshot.adapter else str(snapshot.folder)
            processes = [
                Process(self.local, model, self.max_length, self.folder / f"vllm-{number}.log", number, key, self.model)
                for number in range(self.local.servers)
            ]
            self.say(f"starting vLLM, which takes a minute or more (its log: {self.folder / 'vllm-0.log'})")
        urls = self.urls or [process.url for process in processes if process is not None]
        self.servers = [
            Server(
                Connection(url, key, self.key_variable, self.patience.concurrency),
                process,
                self.patience,
                self.max_length,
                self.say,
            )
            for url, process in zip(urls, processes, strict=True)
        ]
        try:
            background.submit(_all([server.open() for server in self.servers])).result()
        except BaseException:
            background.close(_all([server.close() for server in self.servers]))
            raise
        for server in self.servers:
            if snapshot.adapter and server.root and Path(server.root).resolve() != Path(self.model).resolve():
                self.say(f"vLLM at {server.connection.url} serves {server.root}, and this run adapts {self.model}")
        self._background = background
        return background

    def shutdown(self) -> None:
        """Let go of the servers and end those that were started here. The engine can be used again afterwards."""
        self._nodes.clear()
        if self._background is not None:
            self._background.close(_all([server.close() for server in self.servers]))
            self._background = self._snapshot = None
            forget(self.folder / "weights")

    def report(self) -> dict[str, float]:
        """``requests`` answered, ``retries``, ``restarts`` of servers, ``faults/<kind>``."""
        total: Counter[str] = Counter()
        for server in self.servers:
            total.update(server.tally)
        return dict(sorted(total.items()))

    # -- samples -------------------------------------------------------------------------------------------------------

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        """See :class:`turnwise.engines.engine.Engine`. Whatever raises here, or in ``on_sample``, cancels what is under way.

        Raises:
            ServerError: no server can answer.
        """
        with self._busy:
            background = self._ready()
            requests = [
                self._request(self._nodes[node], sampling, seed) for node, seed in zip(nodes, seeds, strict=True)
            ]
            samples = [Sample([], [], truncated=True) for _ in nodes]
            done: SimpleQueue[tuple[int, Future[Sample]]] = SimpleQueue()
            for place, (node, (server, body)) in enumerate(zip(nodes, requests, strict=True)):
                under_way = background.submit(self._complete(node, server, body))
                under_way.add_done_callback(lambda future, place=place: done.put((place, future)))  # type: ignore[misc]
            try:
                for _ in nodes:
                    place, ended = done.get()
                    sample = None if ended.cancelled() else ended.result()
                    if sample is None or nodes[place] not in self._nodes:
                        continue  # closed meanwhile
                    samples[place] = sample
                    self._nodes[nodes[place]].ids.extend(sample.ids)
                    if on_sample is not None:
                        on_sample(place, sample)
            finally:
                background.submit(self._cancel(list(nodes))).result()
            return samples

    async def request(self, node: int, sampling: Sampling, seed: int) -> Sample:
        """Samples one action for a node, appended to it, from any event loop. Cancelling it ends the request at the server too.

        Raises:
            ServerError: no server can answer.
        """
        background = self._ready()
        server, body = self._request(self._nodes[node], sampling, seed)
        sample = await asyncio.wrap_future(background.submit(self._complete(node, server, body)))
        self._nodes[node].ids.extend(sample.ids)
        return sample

    async def _complete(self, node: int, server: Server, body: dict[str, Any]) -> Sample:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[node] = task
        try:
            return await server.complete(body)
        finally:
            self._tasks.pop(node, None)

    def _ready(self) -> Background:
        if self._snapshot is not None and self._background is not None:
            return self._background
        raise RuntimeError("there are no weights to sample from: call load_weights first")

    def _request(self, history: History, sampling: Sampling, seed: int) -> tuple[Server, dict[str, Any]]:
        assert self._snapshot is not None
        server = self.servers[history.digest % len(self.servers)]
        body = body_of(
            history.ids, sampling, seed, self.end_ids, server.model(self._snapshot), salt=self._snapshot.name
        )
        return server, body

    async def _cancel(self, nodes: list[int]) -> None:
        tasks = [task for node in nodes if (task := self._tasks.pop(node, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _all(work: Sequence[Any]) -> None:
    """Do all of it side by side; the first error is raised when all have ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
