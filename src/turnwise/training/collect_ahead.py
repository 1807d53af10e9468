"""Collects rollouts of later iterations while the policy is trained on an earlier iteration (``rollout.staleness``)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from turnwise.daemon_threads import DaemonThreads
from turnwise.rollouts.collect import Memory
from turnwise.rollouts.player import Player, Tally
from turnwise.training.earlier_policies import become, remembered
from turnwise.training.module import PolicyModule
from turnwise.training.recorder import Gathered

T = TypeVar("T")

Gather = Callable[[int, float, Player, Memory], Gathered]
"""A function that collects an iteration. Arguments: iteration, start time, player, memory of the advantage rule."""

Work = Callable[[Memory], Gathered]
"""A function that takes the advantage rule's memory, collects one iteration and returns the result."""


class Overlap(Generic[T]):
    """Runs functions in threads. The results must be taken in the order in which the functions were started.

    Time limits that need signals (:mod:`turnwise.rollouts.environment_faults`) have no effect in these threads.
    """

    def __init__(self) -> None:
        self._pieces: dict[object, Future[T]] = {}
        self._threads = DaemonThreads(sys.maxsize, "collection")

    def begin(self, what: object, work: Callable[[], T], beside: bool = False) -> Future[T]:
        """Starts the function ``work`` under the name ``what`` and returns its future result.

        With ``beside``, the function runs at once. Otherwise the function runs after the previous function has ended,
        and fails if the previous function has failed.
        """
        before = next(reversed(self._pieces.values()), None)
        threads = torch.get_num_threads()

        def run() -> T:
            # The last digits of results depend on PyTorch's number of threads. A new thread would use the number that
            # any thread set last.
            torch.set_num_threads(threads)
            if before is not None and not beside:
                before.result()
            return work()

        self._pieces[what] = self._threads.submit(run)
        return self._pieces[what]

    def settle(self) -> None:
        """Waits until all functions have ended. The results can still be taken."""
        wait(self._pieces.values())

    def take(self, what: object) -> T | None:
        """Waits for the result of the function with the name ``what`` and returns the result. Returns None if there is
        no result left to take.

        Raises:
            RuntimeError: the oldest result that is left to take has another name.
            BaseException: the exception that the function raised.
        """
        if not self._pieces:
            return None
        first = next(iter(self._pieces))
        if first != what:
            raise RuntimeError(f"{first} was started, not {what}")
        return self._pieces.pop(first).result()


@dataclass(slots=True)
class Ahead:
    """Samples rollouts for later iterations while the policy is trained on an earlier iteration.

    With ``staleness`` k, iteration i is trained on rollouts of policy i - k. The first k + 1 iterations are trained on
    rollouts of policy 0.

    Attributes:
        loads: whether the engine needs the policy's weights. False if nothing is sampled during training.
        beside: whether several collections are sampled at the same time, each with its own adapter. While the last
            rollouts of a collection run, the engine's free capacity then samples the next collection.
        handed: whether the first process samples for all processes of the run.
    """

    module: PolicyModule
    player: Player
    gather: Gather
    iterations: int
    staleness: int
    loads: bool
    beside: bool
    handed: bool
    begun: int = -1  # the last iteration whose collection was started
    last: Future[Gathered] | None = None  # the result of the collection of ``begun``, if it runs in a thread
    overlap: Overlap[Gathered] = field(default_factory=Overlap)
    _now: Work | None = None  # a collection that :meth:`take` runs in the calling thread
    _loaded_before: threading.Event | None = None  # set when the collection that was prepared last has its weights

    def start(self, iteration: int, memory: Mapping[str, float]) -> None:
        """Starts the collection of ``iteration``, unless it was started before. With ``beside``, the collections of
        later iterations are started too. ``memory`` is the advantage rule's memory after the previous iteration.
        """
        if iteration > self.begun:
            self._first(iteration, memory)
        if self.beside:
            self._further(iteration, memory)

    def take(self, iteration: int, memory: Mapping[str, float]) -> Gathered:
        """Waits until the collection of ``iteration`` has ended and returns its result. If the first process samples
        for all processes (``handed``), every process gets the result.
        """
        now, self._now = self._now, None
        gathered = now(lambda: memory) if now else self.overlap.take(iteration)
        if self.handed:
            gathered = self.module.distributed.broadcast(gathered)
        assert gathered is not None
        return gathered

    def taken(self, iteration: int, memory: Mapping[str, float]) -> None:
        """Starts the collections that are sampled while the policy is trained on ``iteration``. ``memory`` is the
        advantage rule's memory after ``iteration``.
        """
        if not self.beside:
            self._further(iteration, memory)

    def _first(self, iteration: int, memory: Mapping[str, float]) -> None:
        """Starts the collection of ``iteration``, with the policy that a run without interruptions would have used."""
        began = time.monotonic()
        self.begun, self.last = iteration, None
        policy = self.module.earlier[0] if self.module.earlier else None
        if self.beside:
            self._begin({iteration: self._later(iteration, policy)}, memory)
            return
        if self.loads:
            with become(self.module, policy):
                self.module.sync_weights(self.player.engine)
        if not self.handed or self.module.distributed.first:
            self._now = partial(self.gather, iteration, began, self.player)

    def _further(self, iteration: int, memory: Mapping[str, float]) -> None:
        """Starts the collections of the k iterations after ``iteration`` that were not started before.

        In the middle of a run, this is only the collection of ``iteration`` + k, which the current policy samples. The
        engine gets the weights even if it has them already, because loading weights empties its cache. The last digits
        of log-probs depend on the cache, which is also empty after a resume.
        """
        if not self.staleness or iteration + 1 >= self.iterations:
            return
        now = remembered(self.module)
        # The policies that sample for the following iterations. They are stored even if the run ends now, because the
        # next start of the run samples with these policies.
        self.module.earlier = [*(self.module.earlier or [now] * self.staleness)[1:], now]
        if self.module.trainer.received_sigterm:
            return
        first, last = self.begun + 1, min(iteration + self.staleness, self.iterations - 1)
        self.begun = max(self.begun, last)
        policies = [*self.module.earlier[:-1], None]  # None: the current policy
        self._begin({i: self._later(i, policies[i - iteration - 1]) for i in range(first, last + 1)}, memory)

    def _later(self, iteration: int, policy: dict[str, Any] | None) -> Work:
        """Returns a function that collects an iteration with the earlier policy ``policy``, or if None, with the
        current policy. The function can be called in a thread.
        """
        began = time.monotonic()
        with become(self.module, policy):
            if self.staleness == 1 and not self.beside:  # the engine is idle now, so no copy of the weights is needed
                self.module.sync_weights(self.player.engine)
                return partial(self.gather, iteration, began, self.player)
            load = self.module.stage_weights(self.player.engine)
        before, self._loaded_before = self._loaded_before, threading.Event()
        return partial(self._loaded, iteration, load, before, self._loaded_before)

    def _loaded(
        self,
        iteration: int,
        load: Callable[[], None],
        before: threading.Event | None,
        loaded: threading.Event,
        memory: Memory,
    ) -> Gathered:
        """Loads into the engine the weights with which ``iteration`` is sampled, and collects the iteration.

        The method first waits for the event ``before`` (the previous collection has its weights), and sets the event
        ``loaded`` after loading. Weights are therefore loaded in the order of the collections. This order matters for
        an engine whose running rollouts continue with the weights that were loaded last.
        """
        began = time.monotonic()
        engine: Any = self.player.engine
        with ExitStack() as ends:
            try:
                if before is not None:
                    before.wait()
                load()
                player = self.player
                if self.beside:
                    player = replace(player, engine=ends.enter_context(engine.held()), tally=Tally())
            finally:
                loaded.set()
            return self.gather(iteration, began, player, memory)

    def _begin(self, pieces: Mapping[int, Work], memory: Mapping[str, float]) -> None:
        if self.handed and not self.module.distributed.first:
            return
        for iteration, work in pieces.items():
            before = self.last
            known: Memory = (lambda: memory) if before is None else partial(_memory, before)
            self.last = self.overlap.begin(iteration, partial(work, known), self.beside)


def _memory(before: Future[Gathered]) -> Mapping[str, float]:
    return before.result().experience.memory
