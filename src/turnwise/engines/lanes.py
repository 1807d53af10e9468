"""A tree engine on every CPU core: each core runs one engine, called a *lane*.

A small model's operations take microseconds. Threads that share an operation would wait longer for each other than they
work. So the lanes share no operation. Each lane is a process with one thread and its own part of the nodes, and none
waits for another before its part is sampled. The first lane is this process itself. The others are forked and see the
same weights (``engines/shared.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import torch

from turnwise.engines.engine import Sample, Sampling, Told
from turnwise.engines.schedule import Named, check_schedule
from turnwise.engines.shared import share
from turnwise.engines.tree import TreeEngine
from turnwise.engines.worker import Asked, Done, Worker

SMALL = (
    64 << 20
)  # bytes of weights that fit into a cache; every lane would read larger weights from memory at every step


class _Place(NamedTuple):
    lane: int
    node: int  # in the first lane the engine's own number, in other lanes ours


class Lanes:
    """Spreads nodes over several tree engines, one per CPU core.

    Args:
        end_ids: tokens that end an action.
        prefill_tokens: greatest number of tokens in one prefill pass of a lane, padding included; this bounds memory.
        copy: True samples from a plain copy with adapters merged in (faster); False samples from the live module, in
            one lane.
        memory_gb: limit of the keys and values that all lanes keep, in units of 10^9 bytes; None: no limit.
        lanes: the number of lanes. None: as many as torch uses threads for small models on a CPU, else one.
        schedule: ``rounds``, or ``free`` (``engines.schedule``).
    """

    served = False

    def __init__(
        self,
        end_ids: Sequence[int],
        prefill_tokens: int = 16384,
        copy: bool = True,
        memory_gb: float | None = None,
        lanes: int | None = None,
        schedule: Named = "rounds",
    ) -> None:
        if lanes is not None and lanes < 1:
            raise ValueError(f"lanes must be at least 1, or null for one a core; got {lanes}")
        if lanes is not None and lanes > 1 and not copy:
            raise ValueError(f"lanes={lanes} needs copy=true, because only this process sees the live module's weights")
        self.lanes = lanes
        self.schedule = check_schedule(schedule)
        self.version = -1
        self._first = TreeEngine(end_ids, prefill_tokens, copy, memory_gb)
        self._budget = self._first.budget
        self._workers: list[Worker] | None = None  # None: no weights have been loaded yet
        self._clear()

    def _clear(self) -> None:
        self._places: dict[int, _Place] = {}
        self._lane_of: dict[str, int] = {}  # by ``near``, the name with which histories are opened
        self._load = [0] * (1 + len(self._workers or ()))  # number of open nodes of each lane
        self._next = 0

    def load_weights(self, model: Any, version: int) -> None:
        """Sets the weights to sample from. Open nodes are closed and all keys and values are dropped."""
        if self._workers is None:
            count = self.lanes or _fitting(model, self._first.copy)
            self._first.budget = None if self._budget is None else max(1, self._budget // count)
            self._first.load_weights(model, version)
            if count > 1:
                share(self._first.model)
            self._workers = [Worker(self._first.twin) for _ in range(count - 1)]
        else:
            self._first.load_weights(model, version)
        for worker in self._workers:
            worker.renew(version)
        self.version = version
        self._clear()

    def report(self) -> dict[str, float]:
        """Returns ``computed_tokens`` (prefilled, not decoded) and ``lane_cpu_seconds`` (of the other processes)."""
        workers = self._workers or ()
        return {
            "computed_tokens": self._first.computed_tokens + sum(worker.computed for worker in workers),
            "lane_cpu_seconds": sum(worker.cpu for worker in workers),
        }

    def shutdown(self) -> None:
        """Ends the other processes, which are started again when they are needed."""
        for worker in self._workers or ():
            worker.shutdown()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        if not ids:
            raise ValueError("a history needs at least one token")
        lane = self._lane_of.get(near) if near is not None else None
        if lane is None:
            lane = self._load.index(min(self._load))
            if near is not None:
                self._lane_of[near] = lane
        if lane == 0:
            return self._add(0, self._first.open(ids))
        node = self._add(lane)
        self._worker(lane).open(node, ids)
        return node

    def fork(self, node: int) -> int:
        lane, inner = self._places[node]
        if lane == 0:
            return self._add(0, self._first.fork(inner))
        copy = self._add(lane)
        self._worker(lane).fork(inner, copy)
        return copy

    def extend(self, node: int, ids: Sequence[int]) -> None:
        lane, inner = self._places[node]
        part = self._first if lane == 0 else self._worker(lane)
        part.extend(inner, ids)

    def close(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            lane, inner = self._places.pop(node)
            self._load[lane] -= 1
            if lane == 0:
                self._first.close([inner])
            else:
                self._worker(lane).close(inner)

    def _add(self, lane: int, inner: int | None = None) -> int:
        self._next += 1
        self._places[self._next] = _Place(lane, self._next if inner is None else inner)
        self._load[lane] += 1
        return self._next

    def _worker(self, lane: int) -> Worker:
        assert self._workers is not None
        return self._workers[lane - 1]

    # -- sampling ------------------------------------------------------------------------------------------------------

    def sample(
        self,
        nodes: Sequence[int],
        sampling: Sampling,
        seeds: Sequence[int],
        on_sample: Told | None = None,
        steps: int | None = None,
        written: Sequence[int] | None = None,
    ) -> list[Sample]:
        """Samples as :meth:`turnwise.engines.tree.TreeEngine.sample` does, with all lanes at the same time."""

        def asked_of(places: list[int]) -> Asked:
            return Asked(
                [self._places[nodes[place]].node for place in places],
                sampling,
                [seeds[place] for place in places],
                on_sample is not None,
                steps,
                None if written is None else [written[place] for place in places],
            )

        parts: dict[int, list[int]] = {}  # lane -> places in the batch
        for place, node in enumerate(nodes):
            parts.setdefault(self._places[node].lane, []).append(place)
        samples: list[Any] = [None] * len(nodes)
        asked = {self._worker(lane): places for lane, places in parts.items() if lane}
        for worker, places in asked.items():
            worker.ask(asked_of(places))
        if own := parts.get(0):
            with _threads(1 if asked else None):
                told = None if on_sample is None else lambda i, sample: on_sample(own[i], sample)
                for place, sample in zip(own, asked_of(own).answer(self._first, told), strict=True):
                    samples[place] = sample
        while asked:
            ready = wait([worker.connection for worker in asked])
            for worker in [worker for worker in asked if worker.connection in ready]:
                for came in worker.take():
                    if isinstance(came, Done):
                        for place, sample in zip(asked.pop(worker), came.samples, strict=True):
                            samples[place] = sample
                    elif on_sample is not None:
                        on_sample(asked[worker][came[0]], came[1])
        return samples


def _fitting(model: Any, copy: bool) -> int:
    weights = list(model.parameters())
    small = sum(weight.numel() * weight.element_size() for weight in weights) <= SMALL
    return torch.get_num_threads() if copy and small and weights[0].device.type == "cpu" else 1


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Sets the number of threads of torch's operations for a block; None leaves the number as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
