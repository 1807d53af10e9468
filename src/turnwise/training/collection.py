"""Collects the rollouts of one iteration, from the current policy or from the previous one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

from turnwise.algo.allocators.allocator import Allocator
from turnwise.algo.states.batches import Batches
from turnwise.errors import InputError
from turnwise.rollouts.collect import Collector, Experience
from turnwise.rollouts.demonstrate import demonstration, paths
from turnwise.rollouts.judged import NOT_SUMS
from turnwise.rollouts.pack import Update
from turnwise.rollouts.play import Player
from turnwise.training.earlier import become, remembered
from turnwise.training.frozen import Frozen
from turnwise.training.module import PolicyModule
from turnwise.training.overlap import Overlap
from turnwise.training.parts import Parts, Settings
from turnwise.training.recorder import Gathered, Recorder
from turnwise.training.reprofile import Reprofile
from turnwise.types import Credit, RolloutTree, State

SLOWEST = [name for name in NOT_SUMS if name.startswith("latency")]


class Imitation:
    """Credit of a demonstration: every demonstrated turn counts once."""

    wants_refill = False

    def __call__(self, tree: RolloutTree, rewards: object) -> Credit:
        return Credit([1.0] * len(tree.turns), [1.0] * len(tree.turns))


@dataclass(frozen=True, slots=True)
class Allocated:
    """An allocator whose budget over all states has been spent: ``counts`` by state id. A process samples for some states."""

    allocator: Allocator
    counts: Mapping[str, int]

    def __call__(self, states: Sequence[State]) -> list[int]:
        return [self.counts[state.id] for state in states]

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return self.allocator.expand(trees)


def sampling_metrics(engine: Mapping[str, float], stale: int, waited: float) -> dict[str, float]:
    """Returns metrics of sampling: the engine's report, how many updates its policy was behind, and the seconds waited."""
    return {
        **{f"engine/{name}": count for name, count in engine.items()},
        "rollout/staleness": float(stale),
        "seconds/waited": waited,
    }


class Learner(Protocol):
    """A model that learns from the rollouts beside the policy."""

    def learn(self, iteration: int, experience: Experience) -> Mapping[str, float]:
        """Learns from an iteration, and returns metrics."""
        ...


class Collection:
    """Returns the updates of an iteration, one for each optimiser step (``update.steps``).

    With ``rollout.staleness=k`` up to k further iterations are sampled while the policy is trained: iteration i learns from
    rollouts of policy i - k (the first k + 1 from policy 0). The engine is then busy, and other users of it call :meth:`settle`
    first. In several processes the first one samples, from servers, and hands each collection to the others.

    Args:
        settings: how much an iteration collects, how it is packed, and the seed of the order of states and of every draw.
        parts: what the method is composed of. Without an allocator nothing is sampled: the demonstrated path is the tree.
        states: where the run may act.
        player: samples; each process of the run samples for its share of the states.
        module: the policy.
        recorder: writes down what was collected.
        reprofile: chooses the states anew as the run goes on; it takes the place of ``states``.
        frozen: groups that were sampled before the first update (``rollout.frozen``); every iteration draws from them.

    Raises:
        InputError: the parts need every collection to be of the current policy.
    """

    def __init__(
        self,
        settings: Settings,
        parts: Parts,
        states: Sequence[State],
        player: Player,
        module: PolicyModule,
        recorder: Recorder,
        reprofile: Reprofile | None = None,
        frozen: Frozen | None = None,
    ) -> None:
        rollout, update = settings.rollout, settings.update
        self.settings, self.parts, self.player, self.module, self.recorder = settings, parts, player, module, recorder
        self.reprofile, self.frozen, self.distributed = reprofile, frozen, module.distributed
        self.overlap = Overlap[Gathered]()
        self.settled = 0.0  # s waited for the collection ahead before its result was taken
        self.halted = False
        self.sampled = parts.allocator is not None
        self.staleness = rollout.staleness if self.sampled else 0
        self.begun = -1  # the last iteration whose collection was begun
        self.handed = bool(self.staleness) and self.distributed.world > 1  # whether the first process samples for all
        if self.handed and not self.distributed.served:
            raise InputError(
                "rollout.staleness: in several processes it needs engine=vllm; set rollout.staleness=0, or trainer.devices=1"
            )
        self.learners: Sequence[Learner] = [parts.predictor] if parts.predictor else []
        self.by_root = {} if self.sampled else paths(states)
        roots = states if self.sampled else [turns[0] for turns in self.by_root.values()]
        if frozen is not None:
            roots = frozen.states
        self.memory: dict[str, float] = {}  # the advantage's; saved in the checkpoint (training/stream.py)
        self._latest: dict[str, float] = {}  # the same, after the collections ahead
        self.collector = Collector(
            select=reprofile or Batches(roots, settings.seed, rollout.states, rollout.trajectories),
            play=frozen or (self._roll_out if self.sampled else self._demonstrate),
            reward=parts.judged or parts.reward or (lambda tree: {}),
            advantage=parts.advantage or Imitation(),
            row_tokens=update.row_tokens,
            batch_tokens=update.batch_tokens,
            steps=update.steps,
            max_refills=rollout.max_refills,
            gather=list if self.handed or not self.sampled else self.distributed.gather,
        )

    def __call__(self, iteration: int) -> list[Update]:
        if self.reprofile is not None:
            self.reprofile.prepare(iteration)
        began, cpu_began = time.monotonic(), time.process_time()
        gathered = self._taken(iteration)
        experience, self.memory = gathered.experience, dict(gathered.experience.memory)
        self.module.staleness = self._stale(experience) if self.sampled else 0
        packing = time.monotonic()
        packed = self.collector.updates(experience)
        done = time.monotonic()
        seconds, waited = gathered.seconds + done - packing, self.settled + done - began
        self.settled = 0.0
        learned = {
            name: value for learner in self.learners for name, value in learner.learn(iteration, experience).items()
        }
        if self.sampled:
            learned |= sampling_metrics(self._add(gathered.engine), self.module.staleness, waited)
        if self.reprofile is not None:
            learned |= self.reprofile.collected(experience)
        cost = self._add(gathered.cost)
        judge = self._add(gathered.judge, largest=SLOWEST) if self.parts.judged else {}
        ahead = self._ahead(iteration)
        whole = replace(gathered, cost=cost, judge=judge, seconds=seconds)
        self.recorder.collected(iteration, whole, packed, learned, cpu_began, done - began)
        for further, work in ahead.items():
            self.overlap.begin(further, work)
        return self.module.with_near([update.share(self.distributed.rank, self.distributed.world) for update in packed])

    def settle(self) -> None:
        """Waits until the collection ahead is done and the engine is free."""
        began = time.monotonic()
        self.overlap.settle()
        waited = time.monotonic() - began
        self.settled += waited
        self.recorder.waited(waited)

    def halt(self) -> None:
        """Ends the collection ahead after its current turn, and drops it."""
        self.halted = True
        self.overlap.settle()

    def _taken(self, iteration: int) -> Gathered:
        """Returns what the iteration collected; in every process the same, if the first one samples for all."""
        gathered = self.overlap.take(iteration) if iteration <= self.begun else self._now(iteration)
        if self.handed:
            gathered = self.distributed.broadcast(gathered)
        assert gathered is not None
        return gathered

    def _now(self, iteration: int) -> Gathered | None:
        """Collects this iteration from the policy that a run without restarts would have used."""
        began = time.monotonic()
        self.begun, self._latest = iteration, self.memory
        if self.sampled and self.frozen is None:
            with become(self.module, self.module.earlier[0] if self.module.earlier else None):
                self.module.sync_weights(self.player.engine)
        return None if self.handed and not self.distributed.first else self._gather(iteration, began)

    def _ahead(self, iteration: int) -> dict[int, Callable[[], Gathered]]:
        """Returns the work of the collections that are begun now, by iteration; empty without overlap.

        In the middle of a run that is one, ``iteration`` + k, from the current policy. The first k of a start go before it.

        The engine gets the weights even if it has them, because that empties its cache: after a resume the cache is empty too,
        and last digits depend on what is cached.
        """
        if not self.staleness or iteration + 1 >= self.settings.iterations:
            return {}
        now = remembered(self.module)
        # the policies of the iterations that follow; also if the run ends now: its next start collects with them
        self.module.earlier = [*(self.module.earlier or [now] * self.staleness)[1:], now]
        if self.module.trainer.received_sigterm:
            return {}
        first, last = self.begun + 1, min(iteration + self.staleness, self.settings.iterations - 1)
        self.begun = max(self.begun, last)
        policies = [*self.module.earlier[:-1], None]  # None: the current one
        work = {i: self._later(i, policies[i - iteration - 1]) for i in range(first, last + 1)}
        return {} if self.handed and not self.distributed.first else work

    def _later(self, iteration: int, policy: dict[str, Any] | None) -> Callable[[], Gathered]:
        """Returns the work of collecting an iteration from a policy (None: the current one), in the thread."""
        began = time.monotonic()
        with become(self.module, policy):
            if self.staleness == 1:  # the engine is free, and needs no copy
                self.module.sync_weights(self.player.engine)
                return partial(self._gather, iteration, began)
            load = self.module.stage_weights(self.player.engine)

        def work() -> Gathered:
            load()
            return self._gather(iteration, time.monotonic())

        return work

    def _gather(self, iteration: int, began: float) -> Gathered:
        before = asdict(self.player.tally)
        experience = self.collector.collect(iteration, self._latest)
        self._latest = dict(experience.memory)
        cost = {name: count - before[name] for name, count in asdict(self.player.tally).items()}
        judge = self.parts.judged.report() if self.parts.judged else {}
        engine = self.player.engine.report() if self.sampled else {}
        return Gathered(experience, cost, time.monotonic() - began, judge, engine)

    def _add(self, mine: Mapping[str, float], largest: Sequence[str] = ()) -> dict[str, float]:
        """Adds up the processes' counts; those of a collection that was handed over are whole already."""
        return dict(mine) if self.handed else self.distributed.add(mine, largest)

    def _stale(self, experience: Experience) -> int:
        """Returns by how many updates the oldest rollouts are behind the policy."""
        version = self.module.version
        most = math.inf if self.frozen is not None else self.staleness
        for tree in experience.trees:
            if not 0 <= version - tree.version <= most:
                raise RuntimeError(f"rollouts of policy {tree.version} would train policy {version}")
        return max((version - tree.version for tree in experience.trees), default=0)

    def _roll_out(self, states: Sequence[State], key: object) -> list[RolloutTree]:
        parts, allocator = self.parts, self.parts.allocator
        assert allocator is not None and parts.gate is not None
        if self.distributed.world > 1:
            allocator = Allocated(allocator, dict(zip((state.id for state in states), allocator(states), strict=True)))
        return self.player.play(
            self.distributed.share(states),
            allocator,
            parts.gate,
            (self.settings.seed, key),
            on_turns=self._still,
            on_reply=parts.judged.ask if parts.judged else None,
        )

    def _still(self, turns: int) -> None:
        if self.halted:
            raise RuntimeError("the run ends: the collection ahead is dropped")

    def _demonstrate(self, states: Sequence[State], key: object) -> list[RolloutTree]:
        return [demonstration(self.by_root[state.id]) for state in states]
