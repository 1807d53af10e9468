"""The collections of a run, each begun when its policy is there and taken when it is trained on (``rollout.staleness``)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from turnwise.rollouts.collect import Memory
from turnwise.rollouts.play import Player, Tally
from turnwise.training.earlier import become, remembered
from turnwise.training.module import PolicyModule
from turnwise.training.overlap import Overlap
from turnwise.training.recorder import Gathered

Gather = Callable[[int, float, Player, Memory], Gathered]
"""Iteration, the time at which its collection began, who samples, and what gives the advantage's memory -> what was collected."""

Work = Callable[[Memory], Gathered]
"""Collects an iteration."""


@dataclass(slots=True)
class Ahead:
    """With ``staleness`` k, iteration i learns from rollouts of policy i - k (the first k + 1 from policy 0).

    Attributes:
        module: the policy.
        player: samples in this process.
        gather: collects.
        iterations: of the run.
        staleness: k.
        loads: whether the engine needs the policy's weights at all.
        beside: whether collections are sampled side by side, each with its own adapter, so that the next one fills the places
            that the last rollouts of the one before leave free; else one after the other.
        handed: whether the first process samples for all.
    """

    module: PolicyModule
    player: Player
    gather: Gather
    iterations: int
    staleness: int
    loads: bool
    beside: bool
    handed: bool
    begun: int = -1  # the last iteration whose collection was begun
    last: Future[Gathered] | None = None  # of it, if it was begun in a thread
    overlap: Overlap[Gathered] = field(default_factory=Overlap)
    _now: Work | None = None  # what was not begun yet, because this thread does it
    _loading: threading.Lock = field(default_factory=threading.Lock)  # of weights, by collections side by side

    def start(self, iteration: int, memory: Mapping[str, float]) -> None:
        """Begins what can be sampled beside this iteration's collection, and this one too if it was not begun before."""
        if iteration > self.begun:
            self._first(iteration, memory)
        if self.beside:
            self._further(iteration, memory)

    def take(self, iteration: int, memory: Mapping[str, float]) -> Gathered:
        """Returns what the iteration collected; in every process the same, if the first one samples for all."""
        now, self._now = self._now, None
        gathered = now(lambda: memory) if now else self.overlap.take(iteration)
        if self.handed:
            gathered = self.module.distributed.broadcast(gathered)
        assert gathered is not None
        return gathered

    def taken(self, iteration: int, memory: Mapping[str, float]) -> None:
        """Begins what is sampled while the policy learns from the iteration that was taken. ``memory``: after that one."""
        if not self.beside:
            self._further(iteration, memory)

    def _first(self, iteration: int, memory: Mapping[str, float]) -> None:
        """This iteration, from the policy that a run without restarts would have used."""
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
        """In the middle of a run that is one, ``iteration`` + k, from the current policy. The first k of a start go before it.

        The engine gets the weights even if it has them, because that empties its cache: after a resume the cache is empty too,
        and last digits depend on what is cached.
        """
        if not self.staleness or iteration + 1 >= self.iterations:
            return
        now = remembered(self.module)
        # the policies of the iterations that follow; also if the run ends now: its next start collects with them
        self.module.earlier = [*(self.module.earlier or [now] * self.staleness)[1:], now]
        if self.module.trainer.received_sigterm:
            return
        first, last = self.begun + 1, min(iteration + self.staleness, self.iterations - 1)
        self.begun = max(self.begun, last)
        policies = [*self.module.earlier[:-1], None]  # None: the current one
        self._begin({i: self._later(i, policies[i - iteration - 1]) for i in range(first, last + 1)}, memory)

    def _later(self, iteration: int, policy: dict[str, Any] | None) -> Work:
        """Returns the work of collecting an iteration from a policy (None: the current one), in a thread."""
        began = time.monotonic()
        with become(self.module, policy):
            if self.staleness == 1 and not self.beside:  # the engine is free, and needs no copy
                self.module.sync_weights(self.player.engine)
                return partial(self.gather, iteration, began, self.player)
            return partial(self._loaded, iteration, self.module.stage_weights(self.player.engine))

    def _loaded(self, iteration: int, load: Callable[[], None], memory: Memory) -> Gathered:
        began = time.monotonic()
        engine: Any = self.player.engine
        with ExitStack() as ends:
            with self._loading:
                load()
                player = self.player
                if self.beside:
                    player = replace(player, engine=ends.enter_context(engine.held()), tally=Tally())
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
