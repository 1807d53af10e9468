"""A process of its own that samples for another one: a tree engine on one thread, over weights that both see.

It is forked, so it starts in milliseconds and holds no second copy of anything. What it is told of nodes travels with the next
sample. One that dies is begun anew with the histories of the nodes that are open, and asked again: draws depend on seeds alone.
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

RESTARTS = 3  # in a row, after which something is wrong with more than the process


@dataclass(frozen=True, slots=True)
class Asked:
    """What a worker samples. It sends samples one by one only if they are ``listened`` to."""

    nodes: list[int]
    sampling: Sampling
    seeds: list[int]
    listened: bool
    steps: int | None = None
    written: list[int] | None = None

    def answer(self, engine: TreeEngine, on_sample: Told | None) -> list[Sample]:
        """Samples it from ``engine``."""
        return engine.sample(self.nodes, self.sampling, self.seeds, on_sample, self.steps, self.written)


@dataclass(frozen=True, slots=True)
class Done:
    """Its whole answer, and what it has done since it was started: tokens that it prefilled, CPU seconds."""

    samples: list[Sample]
    computed: int
    cpu: float


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot answer; ``error`` is the traceback."""

    error: str


class Worker:
    """Args:
    twin: makes the engine that it runs, in the new process.
    """

    def __init__(self, twin: Callable[[], TreeEngine]) -> None:
        self._twin = twin
        self._histories: dict[int, list[int]] = {}  # of open nodes
        self._notes: list[tuple[Any, ...]] = []  # that it has not been told
        self._asked: Asked | None = None
        self._told: set[int] = set()  # places of the batch
        self._version = -1
        self._gone = (0, 0.0)  # tokens and CPU seconds of processes that have ended
        self._here = (0, 0.0)  # and of this one
        self._process: Any = None
        self._lost = 0  # processes in a row
        self.connection: Connection  # ready to be read when something of it has come

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def renew(self, version: int) -> None:
        """The weights have changed where they lie: every node is closed."""
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
        """Tokens prefilled."""
        return self._gone[0] + self._here[0]

    @property
    def cpu(self) -> float:
        """Seconds that a core has worked for it."""
        return self._gone[1] + self._here[1]

    # -- sampling ------------------------------------------------------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """Lets it sample; the answer comes over :attr:`connection` and is read by :meth:`take`."""
        if self._asked is not None and self._process is not None:
            self._end()  # its last answer was never taken: who asked was interrupted
        self._asked, self._told = asked, set()
        self._lost = 0
        if self._process is None:
            self._start()
        else:
            self._send()

    def take(self) -> Iterator[tuple[int, Sample] | Done]:
        """What has come: samples by their place in the batch, if somebody listens, and the whole answer once.

        Raises:
            RuntimeError: it failed, or died again and again.
        """
        assert self._asked is not None
        try:
            came = self.connection.recv()
        except (EOFError, OSError):
            self._again()
            return
        if isinstance(came, Failed):
            raise RuntimeError(f"sampling failed in a process of its own:\n{came.error}")
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
                f"{' (killed; is there memory enough?)' if code == -signal.SIGKILL else ''}; "
                "engine.lanes=1 samples in this process instead"
            )
        self._start()

    def _start(self) -> None:
        context = get_context("fork")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._twin), daemon=True)
        with warnings.catch_warnings():  # of threads that the new process does not have: it needs none of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        self._notes = [("renew", self._version), *(("open", node, ids) for node, ids in self._histories.items())]
        self._send()

    def _end(self) -> int | None:
        """Let it end, and its exit code. What it has computed counts."""
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
    """The life of the process: until the other end is closed, by its owner or by its owner's death."""
    _let_go(connection)
    torch.set_num_threads(1)  # more would wait for threads that a forked process does not have
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
    """Keep nothing of the owner's: no lock of a folder and no socket stays open because of this process."""
    gc.disable()
    gc.freeze()  # nothing of the owner's is finalised here
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both; the owner decides
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
