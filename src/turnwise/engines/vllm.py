"""Samples from a vLLM server over HTTP (``engine=vllm``). The server runs in a separate Python environment.

A node is a list of token ids; its keys and values are in the server's prefix cache. Each version of the weights has a
unique name, and ``load_weights`` closes all nodes, so that no history is continued by newer weights.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt

from turnwise.daemon_threads import EventLoop
from turnwise.endpoints import Connection, Retries, check_url
from turnwise.engines.engine import Named, Sample, Sampling, Told
from turnwise.engines.vllm_client import Snapshot, VllmClient, body_of, forget, save, serve_command


class VllmEngine:
    """Samples from a vLLM server at ``url``. Settings that are not explained here are in ``conf/engine/vllm.yaml``.

    Args:
        model: folder or id of the base model.
        folder: folder for the weights, to which the server must have access under the same path.
        say: callback for messages to the user, one line each.
        max_length: greatest number of tokens of a history including its last action.
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
        key_variable: str = "TURNWISE_VLLM_KEY",
        schedule: Named = "free",
        concurrency: Annotated[int, Ge(1)] = 256,
        attempts: Annotated[int, Ge(1)] = 6,
        attempt_limit: Annotated[float, Gt(0)] = 600.0,
        wait_limit: Annotated[float, Gt(0)] = 900.0,
        backoff: Annotated[float, Ge(0)] = 0.5,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        check_url(self.url, key_variable)
        self.end_ids = frozenset(end_ids)
        self.schedule = schedule
        self.model, self.folder, self.say, self.max_length = model, Path(folder), say, max_length
        self.key_variable, self.concurrency = key_variable, concurrency
        self.attempt_limit = attempt_limit
        self.retries = Retries(attempts, backoff, limit=wait_limit, patient=True)
        self.version = -1
        self.client: VllmClient | None = None
        self._loop = EventLoop("vllm")
        self._places = asyncio.Semaphore(concurrency)  # each request in progress has acquired it; belongs to one loop
        self._snapshot: Snapshot | None = None
        self._staged: list[Snapshot] = []  # snapshots of weights that are written but not loaded yet
        self._folders = threading.Lock()  # guards the folders of weights: one thread may load while another writes
        self._histories: dict[int, list[int]] = {}  # token ids by node
        self._numbers = count(1)
        self._tasks: dict[int, asyncio.Task[Sample]] = {}  # running request by node (event loop's thread only)
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
            raise RuntimeError(f"node {node} is closed; loading weights closes all nodes") from None

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
        """Writes the weights now and returns a function that loads them, as :meth:`load_weights` does."""
        with self._folders:
            snapshot = save(model, version, self.folder / "weights")
            self._staged.append(snapshot)
        return partial(self._load, snapshot)

    def _load(self, snapshot: Snapshot) -> None:
        with self._busy:
            before, self._snapshot = self._snapshot, None  # None until the server has the new weights
            self._loop.start(self._connected(snapshot).load(snapshot)).result()
            with self._folders:
                self._staged.remove(snapshot)
                forget(self.folder / "weights", snapshot, before, *self._staged)
            self._snapshot, self.version = snapshot, snapshot.version
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

    def shutdown(self) -> None:
        """Unloads the adapters and disconnects. ``load_weights`` connects again."""
        self._histories.clear()
        if self.client is not None:
            self._loop.close(self.client.close())
            self.client = self._snapshot = None
            forget(self.folder / "weights")

    def report(self) -> dict[str, float]:
        return dict(sorted(self.client.tally.items())) if self.client is not None else {}

    # -- samples -------------------------------------------------------------------------------------------------------

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        """An error cancels all requests."""
        with self._busy:
            samples = [Sample([], [], truncated=True) for _ in nodes]
            try:
                requests = [self._start(node, sampling, seed) for node, seed in zip(nodes, seeds, strict=True)]
                places = {request: place for place, request in enumerate(requests)}
                for request in as_completed(requests):
                    place = places[request]
                    if request.cancelled() or nodes[place] not in self._histories:
                        continue  # the node was closed while its action was sampled
                    sample = samples[place] = request.result()
                    self._histories[nodes[place]].extend(sample.ids)
                    if on_sample is not None:
                        on_sample(place, sample)
            finally:
                if self.client is not None:
                    self._loop.start(self._cancel(nodes)).result()
            return samples

    async def request(self, node: int, sampling: Sampling, seed: int) -> Sample:
        """Cancelling this coroutine cancels the request."""
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
                snapshot = self._snapshot
                assert snapshot is not None
                model = snapshot.name if snapshot.rank else client.base
                body = body_of(history, sampling, seed, self.end_ids, model, salt=snapshot.name)
                return await client.complete(snapshot, body)
        finally:
            self._tasks.pop(node, None)

    async def _cancel(self, nodes: Sequence[int]) -> None:
        tasks = [task for node in nodes if (task := self._tasks.pop(node, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
