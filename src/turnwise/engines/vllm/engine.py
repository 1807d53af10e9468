"""Samples from vLLM servers over HTTP (``engine=vllm``). The servers run in a separate Python environment.

A node is a list of token ids; its keys and values are in the prefix cache of a server. All rollouts of one initial
state go to the same server, so that they share its prefix cache. Each new state goes to the server with the fewest open
nodes. If a remote server does not answer, its states move to the other servers. Each version of the weights has a
unique name, and ``load_weights`` closes all nodes (unless ``in_flight`` is set), so that no history is continued by
newer weights.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from turnwise.endpoints import Background, Connection, check_url, key_from, run_all
from turnwise.engines.engine import Sample, Sampling, Told
from turnwise.engines.sampling_schedule import Named, check_schedule
from turnwise.engines.vllm.completions import body_of
from turnwise.engines.vllm.faults import AwayError
from turnwise.engines.vllm.histories import Histories, History
from turnwise.engines.vllm.local import Local, Process
from turnwise.engines.vllm.patience import Attempts, Patience
from turnwise.engines.vllm.save_weights import Snapshot, Uses, forget, save
from turnwise.engines.vllm.server import Server


class VllmEngine:
    """Samples from vLLM servers.

    Args:
        end_ids: tokens that end an action.
        model: folder or id of the base model, for servers that the engine starts.
        folder: folder for the weights that servers read, and for the logs of servers on this machine. Every server must
            have access to the folder under the same path.
        say: callback for messages to the user, one line each.
        local: settings for servers that the engine starts on this machine.
        urls: addresses of running servers; if empty, the engine starts servers on this machine.
        max_length: greatest number of tokens of a history including its last action.
        in_flight: whether a history is continued with newer weights as soon as they are loaded. Each sample names the
            version of its weights, and earlier tokens keep the log-probs with which they were sampled.
        key_variable: environment variable with the servers' access token. If it is unset, servers that the engine
            starts get a random token.
        schedule: ``free`` or ``rounds`` (see ``engines.sampling_schedule``).
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
        in_flight: bool = False,
        key_variable: str = "TURNWISE_VLLM_KEY",
        schedule: Named = "free",
    ) -> None:
        self.end_ids = frozenset(end_ids)
        self.schedule = check_schedule(schedule)
        self.in_flight, self.key_variable = in_flight, key_variable
        self.folder = Path(folder)
        self.model, self.local, self.patience, self.max_length, self.say = model, local, patience, max_length, say
        self.urls = [url.rstrip("/").removesuffix("/v1") for url in urls]
        for url in self.urls:
            check_url(url, key_variable)
        if len(set(self.urls)) < len(self.urls):
            raise ValueError(f"urls must contain each server only once, got {', '.join(self.urls)}")
        if not self.urls:
            local.check()
        self.version = -1
        self.servers: list[Server] = []
        self._snapshot: Snapshot | None = None
        self._staged: list[Snapshot] = []  # snapshots of weights that are written but not loaded yet
        self._uses = Uses()
        self._folders = threading.Lock()  # guards the folders of weights: one thread may load while another writes
        self._background: Background | None = None
        self._tasks: dict[int, asyncio.Task[Sample]] = {}  # running request by node (event loop's thread only)
        self._nodes = Histories(len(self.urls) or local.servers)
        self._leader = self  # the engine whose newest weights are sampled from
        self._busy = threading.Lock()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        return self._nodes.open(ids)

    def fork(self, node: int) -> int:
        return self._nodes.fork(node)

    def extend(self, node: int, ids: Sequence[int]) -> None:
        self._nodes[node].ids.extend(ids)

    def close(self, nodes: Sequence[int]) -> None:
        """Closes nodes and cancels their requests; :meth:`sample` returns empty samples. Any thread may call this."""
        self._nodes.close(nodes)
        if self._background is not None:
            self._background.submit(self._cancel(list(nodes))).result()

    # -- weights -------------------------------------------------------------------------------------------------------

    def load_weights(self, model: Any, version: int) -> None:
        """Sets the weights that are sampled from.

        The first call also starts the servers or connects to them. If a batch of actions is being sampled, the call
        waits until this batch is complete.

        Raises:
            ServerError: a server does not start, is unreachable for too long, or cannot load the weights.
            OSError: the weights cannot be written.
        """
        self.stage(model, version)()

    def stage(self, model: Any, version: int) -> Callable[[], None]:
        """Writes the weights now and returns a function that loads them later, as :meth:`load_weights` does.

        Raises:
            OSError: the weights cannot be written.
        """
        with self._folders:
            snapshot = save(model, version, self.folder / "weights")
            self._staged.append(snapshot)
        return partial(self._load, snapshot)

    def _load(self, snapshot: Snapshot) -> None:
        with self._busy:
            before = self._snapshot
            self._snapshot = before if self.in_flight else None  # None until all servers have the new weights
            background = self._started(snapshot)
            used = self._uses.all()
            if before is not None and self.in_flight:
                used.append(before)  # a request may choose these weights until the new weights are loaded
            beside = [other for other in dict.fromkeys(used) if other.adapter and other != snapshot]
            background.submit(run_all([server.load(snapshot, beside) for server in self.servers])).result()
            with self._folders:
                self._staged.remove(snapshot)
                forget(self.folder / "weights", snapshot, before, *beside, *self._staged)
            self._snapshot, self.version = snapshot, snapshot.version
            if not self.in_flight:
                self._nodes.clear()

    @contextmanager
    def held(self) -> Iterator[VllmEngine]:
        """Yields a view of this engine with nodes of its own.

        The view samples with the adapter that is loaded when the view is made. With ``in_flight``, each request uses
        the newest adapter at the time when the request is sent.
        """
        snapshot = self._snapshot
        assert snapshot is not None and snapshot.adapter
        view = copy(self)
        view._nodes, view._tasks = Histories(len(self.servers)), {}
        view._leader = self if self.in_flight else view
        with nullcontext() if self.in_flight else self._uses.use(snapshot):
            yield view

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
                Connection(url, key, self.key_variable, self.patience.concurrency + 8),  # 8 more for health checks
                process,
                self.patience,
                self.max_length,
                self.say,
            )
            for url, process in zip(urls, processes, strict=True)
        ]
        try:
            background.submit(run_all([server.open() for server in self.servers])).result()
        except BaseException:
            background.close(run_all([server.close() for server in self.servers]))
            raise
        for server in self.servers:
            server.others = [other for other in self.servers if other is not server]
            if snapshot.adapter and server.root and Path(server.root).resolve() != Path(self.model).resolve():
                at, remedy = server.connection.url, "if their weights differ, start the server with the run's model"
                self.say(f"warning: vLLM at {at} serves {server.root}, but this run trains {self.model}; {remedy}")
        self._background = background
        return background

    def shutdown(self) -> None:
        """Disconnects from all servers and ends those that the engine started. ``load_weights`` starts them again."""
        self._nodes.clear()
        if self._background is not None:
            self._background.close(run_all([server.close() for server in self.servers]))
            self._background = self._snapshot = None
            forget(self.folder / "weights")

    def report(self) -> dict[str, float]:
        """Returns counts: answered ``requests``, ``retries``, server ``restarts``, and failed attempts by kind."""
        total: Counter[str] = Counter()
        for server in self.servers:
            total.update(server.tally)
        return dict(sorted(total.items()))

    # -- samples -------------------------------------------------------------------------------------------------------

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        """Samples one action per node (see :class:`turnwise.engines.engine.Engine`). An error cancels all requests.

        Raises:
            ServerError: no server can answer.
        """
        with self._busy:
            background = self._ready()
            histories = [self._nodes[node] for node in nodes]
            samples = [Sample([], [], truncated=True) for _ in nodes]
            done: SimpleQueue[tuple[int, Future[Sample]]] = SimpleQueue()
            for place, (node, history, seed) in enumerate(zip(nodes, histories, seeds, strict=True)):
                under_way = background.submit(self._complete(node, history, sampling, seed))
                under_way.add_done_callback(lambda future, place=place: done.put((place, future)))  # type: ignore[misc]
            try:
                for _ in nodes:
                    place, ended = done.get()
                    sample = None if ended.cancelled() else ended.result()
                    if sample is None or nodes[place] not in self._nodes:
                        continue  # the node was closed while its action was sampled
                    samples[place] = sample
                    self._nodes[nodes[place]].ids.extend(sample.ids)
                    if on_sample is not None:
                        on_sample(place, sample)
            finally:
                background.submit(self._cancel(list(nodes))).result()
            return samples

    async def request(self, node: int, sampling: Sampling, seed: int) -> Sample:
        """Samples one action for a node and appends the action. Cancelling this coroutine cancels the request.

        Raises:
            ServerError: no server can answer.
        """
        background = self._ready()
        work = self._complete(node, self._nodes[node], sampling, seed)
        sample = await asyncio.wrap_future(background.submit(work))
        self._nodes[node].ids.extend(sample.ids)
        return sample

    async def _complete(self, node: int, history: History, sampling: Sampling, seed: int) -> Sample:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[node] = task
        attempts = Attempts(self.patience)
        try:
            while True:
                here = [number for number, server in enumerate(self.servers) if not server.aside]
                server = self.servers[self._nodes.server(history, here)]
                with suppress(AwayError):  # another server gets the same request
                    async with server.places:  # the weights are chosen when the request is sent, not before it waits
                        snapshot = self._leader._snapshot
                        assert snapshot is not None
                        with self._uses.use(snapshot):
                            model = server.model(snapshot)
                            body = body_of(history.ids, sampling, seed, self.end_ids, model, salt=snapshot.name)
                            return replace(await server.complete(body, attempts), version=snapshot.version)
        finally:
            self._tasks.pop(node, None)

    def _ready(self) -> Background:
        if self._snapshot is not None and self._background is not None:
            return self._background
        raise RuntimeError("there are no weights to sample from: call load_weights first")

    async def _cancel(self, nodes: list[int]) -> None:
        tasks = [task for node in nodes if (task := self._tasks.pop(node, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
