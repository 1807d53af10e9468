"""Runs a tree engine in a separate process (a worker), on one thread and with weights in shared memory.

The worker is forked, so it starts in milliseconds and copies no data. Calls on nodes are sent together with the next
request for samples. If the worker dies, it is started again with the histories of the open nodes, and the request is
repeated. A sample depends only on its history and seed, so the result is the same.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from turnwise.engines.engine import Sample, Sampling, Told, repeat_call
from turnwise.engines.tree_engine import TreeEngine

RESTARTS = 3  # greatest number of consecutive restarts; then an error is raised, as another restart would not help


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for samples. With ``listened``, the worker also sends each sample as soon as it is complete."""

    nodes: list[int]
    sampling: Sampling
    seeds: list[int]
    listened: bool
    steps: int | None = None
    written: list[int] | None = None

    def answer(self, engine: TreeEngine, on_sample: Told | None) -> list[Sample]:
        return engine.sample(self.nodes, self.sampling, self.seeds, on_sample, self.steps, self.written)


@dataclass(frozen=True, slots=True)
class Done:
    """A worker's complete answer to a request, with totals since the worker process was started."""

    samples: list[Sample]
    computed: int  # number of prefilled tokens
    cpu: float  # CPU time in seconds


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker's answer if sampling failed. ``error`` is the text of the traceback."""

    error: str


class Worker:
    """Controls a worker process. ``twin`` creates the worker's engine; it is called in the worker process."""

    def __init__(self, twin: Callable[[], TreeEngine]) -> None:
        self._twin = twin
        self._histories: dict[int, list[int]] = {}  # token ids of each open node
        self._notes: list[tuple[Any, ...]] = []  # calls on nodes that have not been sent to the worker yet
        self._asked: Asked | None = None
        self._told: set[int] = set()  # indices in the batch of the samples that have arrived
        self._version = -1
        self._gone = (0, 0.0)  # prefilled tokens and CPU seconds of worker processes that have ended
        self._here = (0, 0.0)  # prefilled tokens and CPU seconds of the current worker process
        self._process: Any = None
        self._lost = 0  # number of times that the worker has died during the current request
        self.connection: Connection  # the pipe to the worker; it can be read when an answer has arrived

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def renew(self, version: int) -> None:
        """Prepares the worker for weights that were changed in place, and closes all nodes (stored histories)."""
        self._version, self._histories, self._notes = version, {}, [("renew", version)]

    def open(self, node: int, ids: Sequence[int]) -> None:
        self._histories[node] = list(ids)
        self._notes.append(("open", node, list(ids)))

    def fork(self, source: int, node: int) -> None:
        self._histories[node] = list(self._histories[source])
        self._notes.append(("fork", source, node))

    def extend(self, node: int, ids: Sequence[int]) -> None:
        self._histories[node].extend(ids)
        self._notes.append(("extend", node, list(ids)))

    def close(self, node: int) -> None:
        del self._histories[node]
        self._notes.append(("close", [node]))

    @property
    def computed(self) -> int:
        """Returns the number of tokens prefilled by the current and all ended processes of this worker."""
        return self._gone[0] + self._here[0]

    @property
    def cpu(self) -> float:
        """Returns the CPU time in seconds of the current and all ended processes of this worker."""
        return self._gone[1] + self._here[1]

    # -- sampling ------------------------------------------------------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """Sends a request for samples. :meth:`take` reads the answers, which arrive on :attr:`connection`."""
        if self._asked is not None and self._process is not None:
            self._end()  # the caller was interrupted before it read the previous answer
        self._asked, self._told = asked, set()
        self._lost = 0
        if self._process is None:
            self._start()
        else:
            self._send()

    def take(self) -> Iterator[tuple[int, Sample] | Done]:
        """Reads one message from the worker and yields it.

        The message is either one sample with its index in the batch (if ``listened`` was set) or the complete answer.
        Nothing is yielded if the message repeats a sample, or if the worker has died and was started again.

        Raises:
            RuntimeError: sampling failed, or the worker died more than ``RESTARTS`` times during this request.
        """
        assert self._asked is not None
        try:
            came = self.connection.recv()
        except (EOFError, OSError):
            self._again()
            return
        if isinstance(came, Failed):
            raise RuntimeError(f"sampling failed in a separate process:\n{came.error}")
        if isinstance(came, Done):
            self._here = (came.computed, came.cpu)
            for node, sample in zip(self._asked.nodes, came.samples, strict=True):
                self._histories[node].extend(sample.ids)
            self._asked = None
            yield came
        elif came[0] not in self._told:
            self._told.add(came[0])
            yield came

    def _send(self) -> None:
        try:
            self.connection.send((self._notes, self._asked))
            self._notes = []
        except OSError:
            self._again()

    def _again(self) -> None:
        self._lost += 1
        code = self._end()
        if self._lost > RESTARTS:
            raise RuntimeError(
                f"the sampling process ended {self._lost} times in a row, the last time with exit code {code}"
                f"{' (it was killed, probably because memory ran out)' if code == -signal.SIGKILL else ''}; "
                "set engine.lanes=1 to sample in this process instead"
            )
        self._start()

    def _start(self) -> None:
        context = get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._twin), daemon=True)
        with warnings.catch_warnings():  # Python warns that a fork does not copy threads; the worker needs none
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        self._notes = [("renew", self._version), *(("open", node, ids) for node, ids in self._histories.items())]
        self._send()

    def _end(self) -> int | None:
        self._gone, self._here = (self.computed, self.cpu), (0, 0.0)
        self.connection.close()
        self._process.join(timeout=10)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        code: int | None = self._process.exitcode
        self._process = None
        return code

    def shutdown(self) -> None:
        if self._process is not None:
            self._end()


def _serve(connection: Connection, twin: Callable[[], TreeEngine]) -> None:
    _let_go(connection)
    torch.set_num_threads(1)  # with more threads, torch would wait forever for its threads, which a fork does not copy
    engine = twin()
    nodes: dict[int, int] = {}  # the owner's node number -> the engine's node number
    while True:
        try:
            notes, asked = connection.recv()
        except (EOFError, OSError):
            return
        try:
            for what, *told in notes:
                if what == "renew":
                    engine.renew(*told)
                    nodes.clear()
                else:
                    repeat_call(engine, nodes, what, *told)
            tell = (lambda place, sample: connection.send((place, sample))) if asked.listened else None
            samples = replace(asked, nodes=[nodes[node] for node in asked.nodes]).answer(engine, tell)
            connection.send(Done(samples, engine.computed_tokens, time.process_time()))
        except BrokenPipeError:
            return
        except Exception:
            connection.send(Failed(traceback.format_exc()))


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
