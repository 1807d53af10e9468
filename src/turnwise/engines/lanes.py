"""Runs several tree engines, normally one per CPU core; each of these engines is called a *lane*.

One operation of a small model takes microseconds, so threads that split it would mostly wait for each other. Therefore
each lane is a process with one thread, which samples its own nodes (histories). The first lane is the main process. The
other lanes are forked from it and use its weights through shared memory (:func:`share_with_lanes`).

A worker starts in milliseconds and copies no data. Calls on nodes are made together with the next batch.
If a worker dies, the run stops, and the same command resumes it from its last checkpoint.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import time
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt

from turnwise.engines.engine import Named, Sample, Sampling, Told
from turnwise.engines.tree_engine import TreeEngine
from turnwise.errors import Stopped

# -- worker processes --------------------------------------------------------------------------------------------------


Call = tuple[Any, ...]
"""The name of an engine's method (``open``, ``fork``, ``extend`` or ``close``) and its arguments."""


class Batch(NamedTuple):
    """A batch to sample. With ``listened``, a worker also sends each sample as soon as it is complete."""

    calls: list[Call]  # are made first
    made: int  # number of nodes that the lane has made since its weights changed, after the calls
    nodes: list[int]
    sampling: Sampling
    seeds: list[int]
    listened: bool


class Done(NamedTuple):
    """A worker's complete answer to a batch, with totals since the worker process was started."""

    samples: list[Sample]
    computed: int  # number of prefilled tokens
    cpu: float  # CPU time in seconds


def answer(engine: TreeEngine, batch: Batch, on_sample: Told | None) -> list[Sample]:
    for method, *given in batch.calls:
        getattr(engine, method)(*given)
    if engine.made != batch.made:  # else a number would name another history
        raise RuntimeError("an interrupted batch has lost calls of a lane; load the weights again")
    return engine.sample(batch.nodes, batch.sampling, batch.seeds, on_sample)


class LaneWorker:
    """Controls a worker process, which is forked with the first batch and samples with a twin of ``engine``."""

    connection: Connection  # the pipe to the worker; it can be read when an answer has arrived

    def __init__(self, engine: TreeEngine) -> None:
        self._engine = engine
        self.version: int | None = None  # of weights that the worker has not been told of
        self._waits = False  # whether an answer is still to be read
        self._process: Any = None
        self.computed, self.cpu = 0, 0.0  # prefilled tokens and CPU seconds of the worker process

    def ask(self, batch: Batch) -> None:
        """:meth:`take` reads the answers, which arrive on :attr:`connection`."""
        while self._waits:  # the caller was interrupted before it read the previous answer
            self.take()
        if self._process is None:
            self._start()
        try:
            self.connection.send((self.version, batch))
        except OSError as error:
            raise self._ended() from error
        self.version, self._waits = None, True

    def take(self) -> tuple[int, Sample] | Done:
        """Reads one message: a sample with its index in the batch (with ``listened``), or the complete answer.

        Raises:
            RuntimeError: sampling failed.
            Stopped: the worker has died.
        """
        try:
            came: tuple[int, Sample] | Done | str = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        self._waits = not isinstance(came, Done | str)
        if isinstance(came, str):
            raise RuntimeError(f"sampling failed in a separate process:\n{came}")
        if isinstance(came, Done):
            self.computed, self.cpu = came.computed, came.cpu
        return came

    def _start(self) -> None:
        context = get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve_lane, args=(theirs, self._engine), daemon=True)
        with warnings.catch_warnings():  # Python warns that a fork does not copy threads; the worker needs none
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def _ended(self) -> Stopped:
        code = self.shutdown()
        killed = " (it was killed, probably because memory ran out)" if code == -signal.SIGKILL else ""
        return Stopped(
            f"a sampling process ended with exit code {code}{killed}; the same command resumes the run, and "
            "engine.lanes=1 samples in a single process"
        )

    def shutdown(self) -> int | None:
        """Ends the process and returns its exit code. It is started again with the next batch."""
        if self._process is None:
            return None
        self.connection.close()
        self._process.join(timeout=10)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        code: int | None = self._process.exitcode
        self._process, self._waits = None, False
        return code


def _serve_lane(connection: Connection, engine: TreeEngine) -> None:
    _let_go(connection)
    torch.set_num_threads(1)  # with more threads, torch would wait forever for its threads, which a fork does not copy
    engine.release()
    own = engine.twin()
    while True:
        try:
            version, batch = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if version is not None:
                own.renew(version)
            tell = (lambda place, sample: connection.send((place, sample))) if batch.listened else None
            samples = answer(own, batch, tell)
            connection.send(Done(samples, own.computed_tokens, time.process_time()))
        except BrokenPipeError:
            return
        except Exception:
            connection.send(traceback.format_exc())


def _let_go(connection: Connection) -> None:
    """Closes inherited files and resets signals, so that the worker process keeps no lock or socket of its owner."""
    gc.disable()
    gc.freeze()  # so that no object of the owner is finalised in this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the owner handles it
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    last = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, connection.fileno())
    os.closerange(connection.fileno() + 1, last)


# -- lanes -------------------------------------------------------------------------------------------------------------


# A model whose weights have at most this many bytes gets one lane per CPU core. On two cores, two lanes took 0.90 to
# 0.92 of the time of one lane at 80 MB, and the same time as one lane at 480 MB (benchmarks/rollout.py, 20 and 120
# million float32 parameters).
SMALL = 128 << 20
ALIGN = 64  # bytes; the address of each parameter in shared memory is a multiple of this number


class Lanes:
    """Spreads nodes (histories) over several tree engines (lanes), each in a process of its own.

    Args:
        end_ids, prefill_tokens, copy, schedule, weights: as for :class:`turnwise.engines.tree_engine.TreeEngine`.
            ``copy=False`` allows only one lane.
        memory_gb: memory limit for the keys and values of all lanes together, in units of 10^9 bytes; None: no limit.
        lanes: number of lanes; None: the number of torch's threads for a small model on a CPU, otherwise 1.
    """

    served = False

    def __init__(
        self,
        end_ids: Sequence[int],
        prefill_tokens: Annotated[int, Ge(1)] = 16384,
        copy: bool = True,
        memory_gb: Annotated[float, Gt(0)] | None = None,
        lanes: Annotated[int, Ge(1)] | None = None,
        schedule: Named = "rounds",
        weights: Literal["float16"] | None = None,
    ) -> None:
        if lanes is not None and lanes > 1 and not copy:
            raise ValueError(
                f"lanes={lanes} needs copy=true, because all lanes but the first are processes without the trained "
                "model; set copy=true, or lanes=1"
            )
        self.lanes = lanes
        self.schedule = schedule
        self.version = -1
        self._first = TreeEngine(end_ids, prefill_tokens, copy, memory_gb, weights=weights)
        self._budget = self._first.budget
        self._workers: list[LaneWorker] | None = None  # None: no weights have been loaded yet
        self._clear()

    def _clear(self) -> None:
        # node -> its lane, and its number there: each engine numbers its nodes from 1 in the order of calls
        self._places: dict[int, tuple[int, int]] = {}
        self._near: dict[str, int] = {}  # lane by ``near``, the task name that is given to ``open``
        count = 1 + len(self._workers or ())
        self._load, self._made = [0] * count, [0] * count  # number of open nodes of each lane, and of all its nodes
        self._calls: list[list[Call]] = [[] for _ in range(count)]  # that each lane has not made yet
        self._next = 0

    def load_weights(self, model: Any, version: int) -> None:
        engine = self._first
        if self._workers is None:
            count = self.lanes or _fitting(model, engine.copy)
            engine.budget = None if self._budget is None else max(1, self._budget // count)
            engine.packing = count
            engine.load_weights(model, version)
            if count > 1:
                share_with_lanes(engine.model)
            if next(engine.model.parameters()).device.type == "cpu":
                from turnwise.engines.decode_kernel import prepare_decode_kernel

                prepare_decode_kernel(threads=1 if count > 1 else torch.get_num_threads())
            self._workers = [LaneWorker(engine) for _ in range(count - 1)]
        else:
            engine.load_weights(model, version)
        for worker in self._workers:
            worker.version = version
        self.version = version
        self._clear()

    def report(self) -> dict[str, float]:
        """``computed_tokens`` of all lanes, and ``lane_cpu_seconds`` of all lanes except the first."""
        workers = self._workers or ()
        return {
            "computed_tokens": self._first.computed_tokens + sum(worker.computed for worker in workers),
            "lane_cpu_seconds": sum(worker.cpu for worker in workers),
        }

    def shutdown(self) -> None:
        """Ends the processes of all lanes except the first. They are started again when they are needed."""
        for worker in self._workers or ():
            worker.shutdown()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        if not ids:
            raise ValueError("a history needs at least one token")
        lane = self._near.get(near) if near is not None else None
        if lane is None:
            lane = self._load.index(min(self._load))
            if near is not None:
                self._near[near] = lane
        return self._add(lane, ("open", list(ids)))

    def fork(self, node: int) -> int:
        lane, own = self._places[node]
        return self._add(lane, ("fork", own))

    def extend(self, node: int, ids: Sequence[int]) -> None:
        lane, own = self._places[node]
        self._calls[lane].append(("extend", own, list(ids)))

    def close(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            lane, own = self._places.pop(node)
            self._load[lane] -= 1
            self._calls[lane].append(("close", [own]))

    def _add(self, lane: int, call: Call) -> int:
        self._calls[lane].append(call)
        self._next += 1
        self._load[lane] += 1
        self._made[lane] += 1
        self._places[self._next] = lane, self._made[lane]
        return self._next

    # -- sampling ------------------------------------------------------------------------------------------------------

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        def batch(lane: int, places: list[int]) -> Batch:
            calls, self._calls[lane] = self._calls[lane], []
            chosen = [self._places[nodes[place]][1] for place in places], sampling, [seeds[place] for place in places]
            return Batch(calls, self._made[lane], *chosen, on_sample is not None)

        parts: dict[int, list[int]] = {}  # lane -> indices of its nodes in the batch
        for place, node in enumerate(nodes):
            parts.setdefault(self._places[node][0], []).append(place)
        samples: list[Any] = [None] * len(nodes)
        own = parts.pop(0, [])
        asked: dict[LaneWorker, list[int]] = {}
        for lane, places in parts.items():
            assert self._workers is not None
            asked[self._workers[lane - 1]] = places
            self._workers[lane - 1].ask(batch(lane, places))
        if own:
            threads = torch.get_num_threads()
            torch.set_num_threads(1 if self._workers else threads)
            told = None if on_sample is None else lambda i, sample: on_sample(own[i], sample)
            try:
                for place, sample in zip(own, answer(self._first, batch(0, own), told), strict=True):
                    samples[place] = sample
            finally:
                torch.set_num_threads(threads)
        while asked:
            ready = wait([worker.connection for worker in asked])
            for worker in [worker for worker in asked if worker.connection in ready]:
                came = worker.take()
                if isinstance(came, Done):
                    for place, sample in zip(asked.pop(worker), came.samples, strict=True):
                        samples[place] = sample
                elif on_sample is not None:
                    on_sample(asked[worker][came[0]], came[1])
        return samples


def share_with_lanes(model: Any) -> None:
    """Moves a model's parameters into memory that this process shares with all processes that it forks later, an
    anonymous mapping. Later changes of the parameters in place are visible in all these processes.
    """
    parameters = list(model.parameters())
    places, size = [], 0
    for parameter in parameters:
        places.append(size)
        size += -(-parameter.numel() * parameter.element_size() // ALIGN) * ALIGN
    memory = mmap.mmap(-1, size)
    for parameter, place in zip(parameters, places, strict=True):
        flat = torch.frombuffer(memory, dtype=parameter.dtype, count=parameter.numel(), offset=place)
        parameter.data = flat.view(parameter.shape).copy_(parameter.data)


def _fitting(model: Any, copy: bool) -> int:
    weights = list(model.parameters())
    small = sum(weight.numel() * weight.element_size() for weight in weights) <= SMALL
    return torch.get_num_threads() if copy and small and weights[0].device.type == "cpu" else 1
