"""Samples from a vLLM server over HTTP (``engine=vllm``). The server runs in a separate Python environment.

A node is a list of token ids; its keys and values are in the server's prefix cache. Each version of the weights has a
unique name, and ``load_weights`` closes all nodes (unless ``in_flight`` is set), so that no history is continued by
newer weights.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from turnwise.daemon_threads import EventLoop
from turnwise.endpoints import Connection, Retries, check_url
from turnwise.engines.engine import Named, Sample, Sampling, Told, check_schedule
from turnwise.engines.vllm_client import Snapshot, VllmClient, body_of, forget, save, serve_command


class VllmEngine:
    """Samples from a vLLM server at ``url``. Settings that are not explained here are in ``conf/engine/vllm.yaml``.

    Args:
        model: folder or id of the base model.
        folder: folder for the weights, to which the server must have access under the same path.
        say: callback for messages to the user, one line each.
        max_length: greatest number of tokens of a history including its last action.
        in_flight: whether a history is continued with newer weights as soon as they are loaded. Each sample names the
            version of its weights, and earlier tokens keep the log-probs with which they were sampled.
    """

    served = True

    def __init__(
        self,
        end_ids: Sequence[int],
        model: str,
        folder: str | Path,
        say: Callable[[str], None],
        url: str = "http://127.0.0.1:8000",
        max_length: int = 4096,
        in_flight: bool = False,
        key_variable: str = "TURNWISE_VLLM_KEY",
        schedule: Named = "free",
        concurrency: int = 256,
        attempts: int = 6,
        attempt_limit: float = 600.0,
        wait_limit: float = 900.0,
        backoff: float = 0.5,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self.url = url.rstrip("/").removesuffix("/v1")
        check_url(self.url, key_variable)
        self.end_ids = frozenset(end_ids)
        self.schedule = check_schedule(schedule)
        self.model, self.folder, self.say, self.max_length = model, Path(folder), say, max_length
        self.in_flight, self.key_variable, self.concurrency = in_flight, key_variable, concurrency
        self.attempt_limit = attempt_limit
        self.retries = Retries(attempts, backoff, limit=wait_limit, patient=True)
        self.version = -1
        self.client: VllmClient | None = None
        self._loop = EventLoop("vllm")
        self._places = asyncio.Semaphore(concurrency)  # each request in progress has acquired it; belongs to one loop
        self._snapshot: Snapshot | None = None
        self._staged: list[Snapshot] = []  # snapshots of weights that are written but not loaded yet
        self._uses: dict[object, Snapshot] = {}  # the snapshots that requests in progress and views still need
        self._folders = threading.Lock()  # guards the folders of weights: one thread may load while another writes
        self._histories: dict[int, list[int]] = {}  # token ids by node
        self._numbers = count(1)
        self._tasks: dict[int, asyncio.Task[Sample]] = {}  # running request by node (event loop's thread only)
        self._leader = self  # the engine whose newest weights are sampled from
        self._busy = threading.Lock()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        if not ids:
            raise ValueError("a history needs at least one token")
        node = next(self._numbers)
        self._histories[node] = list(ids)
        return node

    def fork(self, node: int) -> int:
        return self.open(self._history(node))

    def extend(self, node: int, ids: Sequence[int]) -> None:
        self._history(node).extend(ids)

    def close(self, nodes: Sequence[int]) -> None:
        """Closes nodes and cancels their requests; :meth:`sample` returns empty samples. Any thread may call this."""
        for node in nodes:
            self._histories.pop(node, None)
        if self.client is not None:
            self._loop.start(self._cancel(nodes)).result()

    def _history(self, node: int) -> list[int]:
        try:
            return self._histories[node]
        except KeyError:
            raise RuntimeError(
                f"node {node} is closed; loading weights closes all nodes, unless engine.in_flight=true"
            ) from None

    # -- weights -------------------------------------------------------------------------------------------------------

    def load_weights(self, model: Any, version: int) -> None:
        """Sets the weights that are sampled from. The first call also waits for the server.

        If a batch of actions is being sampled, the call waits until this batch is complete.

        Raises:
            ServerError: the server is unreachable for too long, or cannot load the weights.
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
            self._snapshot = before if self.in_flight else None  # None until the server has the new weights
            used = list(self._uses.values())
            if before is not None and self.in_flight:
                used.append(before)  # a request may choose these weights until the new weights are loaded
            beside = [other for other in dict.fromkeys(used) if other.rank and other != snapshot]
            self._loop.start(self._connected(snapshot).load(snapshot, beside)).result()
            with self._folders:
                self._staged.remove(snapshot)
                forget(self.folder / "weights", snapshot, before, *beside, *self._staged)
            self._snapshot, self.version = snapshot, snapshot.version
            if not self.in_flight:
                self._histories.clear()

    def _connected(self, snapshot: Snapshot) -> VllmClient:
        if self.client is None:
            self._places = asyncio.Semaphore(self.concurrency)
            connection = Connection(self.url, self.key_variable, self.concurrency + 8)  # 8 more for checks
            command = serve_command(snapshot, self.model, self.max_length, self.url)
            self.client = VllmClient(
                connection, self.retries, self.attempt_limit, self.max_length, self.model, self.say, command
            )
        return self.client

    @contextmanager
    def held(self) -> Iterator[VllmEngine]:
        """Yields a view of this engine with nodes of its own.

        The view samples with the adapter that is loaded when the view is made. With ``in_flight``, each request uses
        the newest adapter at the time when the request is sent.
        """
        snapshot = self._snapshot
        assert snapshot is not None and snapshot.rank
        view = copy(self)
        view._histories, view._tasks = {}, {}
        view._leader = self if self.in_flight else view
        with nullcontext() if self.in_flight else self._using(snapshot):
            yield view

    @contextmanager
    def _using(self, snapshot: Snapshot) -> Iterator[None]:
        use = object()
        self._uses[use] = snapshot
        try:
            yield
        finally:
            del self._uses[use]

    def shutdown(self) -> None:
        """Unloads the adapters and disconnects. ``load_weights`` connects again."""
        self._histories.clear()
        if self.client is not None:
            self._loop.close(self.client.close())
            self.client = self._snapshot = None
            forget(self.folder / "weights")

    def report(self) -> dict[str, float]:
        """Returns counts: answered ``requests``, and failed attempts by kind."""
        return dict(sorted(self.client.tally.items())) if self.client is not None else {}

    # -- samples -------------------------------------------------------------------------------------------------------

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        """Samples one action per node (see :class:`turnwise.engines.engine.Engine`). An error cancels all requests.

        Raises:
            ServerError: the server cannot answer.
        """
        with self._busy:
            samples = [Sample([], [], truncated=True) for _ in nodes]
            ended: SimpleQueue[tuple[int, Future[Sample]]] = SimpleQueue()
            try:
                for place, (node, seed) in enumerate(zip(nodes, seeds, strict=True)):
                    request = self._start(node, sampling, seed)
                    request.add_done_callback(lambda future, place=place: ended.put((place, future)))  # type: ignore[misc]
                for _ in nodes:
                    place, future = ended.get()
                    sample = None if future.cancelled() else future.result()
                    if sample is None or nodes[place] not in self._histories:
                        continue  # the node was closed while its action was sampled
                    samples[place] = sample
                    self._histories[nodes[place]].extend(sample.ids)
                    if on_sample is not None:
                        on_sample(place, sample)
            finally:
                if self.client is not None:
                    self._loop.start(self._cancel(nodes)).result()
            return samples

    async def request(self, node: int, sampling: Sampling, seed: int) -> Sample:
        """Samples one action for a node and appends the action. Cancelling this coroutine cancels the request.

        Raises:
            ServerError: the server cannot answer.
        """
        sample = await asyncio.wrap_future(self._start(node, sampling, seed))
        self._history(node).extend(sample.ids)
        return sample

    def _start(self, node: int, sampling: Sampling, seed: int) -> Future[Sample]:
        if self._snapshot is None or self.client is None:
            raise RuntimeError("there are no weights to sample from: call load_weights first")
        return self._loop.start(self._complete(self.client, node, self._history(node), sampling, seed))

    async def _complete(
        self, client: VllmClient, node: int, history: Sequence[int], sampling: Sampling, seed: int
    ) -> Sample:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[node] = task
        try:
            async with self._places:  # the weights are chosen when the request is sent, not before it waits
                snapshot = self._leader._snapshot
                assert snapshot is not None
                with self._using(snapshot):
                    model = snapshot.name if snapshot.rank else client.base
                    body = body_of(history, sampling, seed, self.end_ids, model, salt=snapshot.name)
                    return replace(await client.complete(snapshot, body), version=snapshot.version)
        finally:
            self._tasks.pop(node, None)

    async def _cancel(self, nodes: Sequence[int]) -> None:
        tasks = [task for node in nodes if (task := self._tasks.pop(node, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
