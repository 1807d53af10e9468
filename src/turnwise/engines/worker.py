"""A separate process that samples for this one: a tree engine on one thread, over weights that both processes see.

The process is forked, so it starts in milliseconds and holds no second copy of anything. Calls on nodes are sent
together with the next request for samples. If the process dies, it is started again with the histories of the open
nodes, and the request is repeated; the result is the same, because draws depend only on seeds.
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

from turnwise.engines.engine import Sample, Sampling, Told
from turnwise.engines.tree import TreeEngine

RESTARTS = 3  # greatest number of restarts in a row; after more, the cause is probably elsewhere


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for samples. The worker sends samples one by one only if ``listened`` is set."""

    nodes: list[int]
    sampling: Sampling
    seeds: list[int]
    listened: bool
    steps: int | None = None
    written: list[int] | None = None

    def answer(self, engine: TreeEngine, on_sample: Told | None) -> list[Sample]:
        """Samples the request with ``engine`` and returns the samples."""
        return engine.sample(self.nodes, self.sampling, self.seeds, on_sample, self.steps, self.written)


@dataclass(frozen=True, slots=True)
class Done:
    """A worker's complete answer, with totals since its start: prefilled tokens and CPU seconds."""

    samples: list[Sample]
    computed: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer of a worker that failed; ``error`` is the traceback."""

    error: str


class Worker:
    """The process that samples, seen from its owner.

    Args:
        twin: makes the process's engine, in the new process.
    """

    def __init__(self, twin: Callable[[], TreeEngine]) -> None:
        self._twin = twin
        self._histories: dict[int, list[int]] = {}  # of open nodes
        self._notes: list[tuple[Any, ...]] = []  # calls that have not been sent to the process yet
        self._asked: Asked | None = None
        self._told: set[int] = set()  # places of the batch whose samples have arrived
        self._version = -1
        self._gone = (0, 0.0)  # tokens and CPU seconds of earlier processes
        self._here = (0, 0.0)  # tokens and CPU seconds of the current process
        self._process: Any = None
        self._lost = 0  # number of processes that ended in a row
        self.connection: Connection  # readable when an answer has arrived

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def renew(self, version: int) -> None:
        """Accepts weights that were changed in place and closes every node."""
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
        self._notes.append(("close", node))

    @property
    def computed(self) -> int:
        """Returns the number of prefilled tokens."""
        return self._gone[0] + self._here[0]

    @property
    def cpu(self) -> float:
        """Returns the CPU seconds of all its processes."""
        return self._gone[1] + self._here[1]

    # -- sampling ------------------------------------------------------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """Sends a request for samples; the answer arrives on :attr:`connection` and is read by :meth:`take`."""
        if self._asked is not None and self._process is not None:
            self._end()  # the last answer was never read, because the caller was interrupted
        self._asked, self._told = asked, set()
        self._lost = 0
        if self._process is None:
            self._start()
        else:
            self._send()

    def take(self) -> Iterator[tuple[int, Sample] | Done]:
        """Yields what has arrived: single samples with their places in the batch (if requested) or the whole answer.

        Raises:
            RuntimeError: sampling failed, or the process died too often in a row.
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
                f"the process that samples ended {self._lost} times in a row, the last time with exit code {code}"
                f"{' (killed; is there enough memory?)' if code == -signal.SIGKILL else ''}; "
                "engine.lanes=1 samples in this process instead"
            )
        self._start()

    def _start(self) -> None:
        context = get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._twin), daemon=True)
        with warnings.catch_warnings():  # Python warns that a fork has none of the threads; the new process needs none
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        self._notes = [("renew", self._version), *(("open", node, ids) for node, ids in self._histories.items())]
        self._send()

    def _end(self) -> int | None:
        """Ends the process and returns its exit code. Its tokens and CPU seconds are kept in the totals."""
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
    """Runs the process until the other end of the connection is closed, by its owner or by the owner's death."""
    _let_go(connection)
    torch.set_num_threads(1)  # more threads would wait for threads that a forked process does not have
    engine = twin()
    nodes: dict[int, int] = {}  # by its owner's numbers
    while True:
        try:
            notes, asked = connection.recv()
        except (EOFError, OSError):
            return
        try:
            for note in notes:
                _heed(engine, nodes, *note)
            tell = (lambda place, sample: connection.send((place, sample))) if asked.listened else None
            samples = replace(asked, nodes=[nodes[node] for node in asked.nodes]).answer(engine, tell)
            connection.send(Done(samples, engine.computed_tokens, time.process_time()))
        except BrokenPipeError:
            return
        except Exception:
            connection.send(Failed(traceback.format_exc()))


def _let_go(connection: Connection) -> None:
    """Releases what belongs to the owner, so that no folder lock and no socket stays open because of this process."""
    gc.disable()
    gc.freeze()  # so that no object of the owner is finalised here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both processes; the owner decides
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    last = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, connection.fileno())
    os.closerange(connection.fileno() + 1, last)


def _heed(engine: TreeEngine, nodes: dict[int, int], what: str, *told: Any) -> None:
    match what:
        case "renew":
            engine.renew(*told)
            nodes.clear()
        case "open":
            nodes[told[0]] = engine.open(told[1])
        case "fork":
            nodes[told[1]] = engine.fork(nodes[told[0]])
        case "extend":
            engine.extend(nodes[told[0]], told[1])
        case "close":
            engine.close([nodes.pop(told[0])])
