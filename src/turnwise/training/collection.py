"""Collects the rollouts of each iteration, which the current policy or an earlier policy samples."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from turnwise.algo.allocators.allocator import Allocator
from turnwise.algo.states.batches import Batches
from turnwise.errors import InputError
from turnwise.rollouts.collect import Collector, Experience, Memory
from turnwise.rollouts.demonstrate import demonstrated_paths, demonstration
from turnwise.rollouts.pack import Update
from turnwise.rollouts.player import Player
from turnwise.training.build_parts import Parts, Settings
from turnwise.training.collect_ahead import Ahead
from turnwise.training.frozen_buffer import Frozen
from turnwise.training.iteration_metrics import sampling_metrics
from turnwise.training.module import PolicyModule
from turnwise.training.recorder import Gathered, Recorder
from turnwise.training.reprofile import Reprofile
from turnwise.training.stale_mismatch import stale_mismatch
from turnwise.types import Credit, Rewards, RolloutTree, State


class Imitation:
    """The advantage rule for demonstrations: every demonstrated turn has weight 1 and advantage 1."""

    def __call__(self, tree: RolloutTree, rewards: object) -> Credit:
        return Credit([1.0] * len(tree.turns), [1.0] * len(tree.turns))


@dataclass(frozen=True, slots=True)
class Allocated:
    """An allocator for the states of one process. ``counts`` maps the id of every state to the number of rollouts that
    ``allocator`` decided.

    Each process samples only for some states, but ``allocator`` divides its budget among the states of all processes.
    """

    allocator: Allocator
    counts: Mapping[str, int]

    def __call__(self, states: Sequence[State]) -> list[int]:
        return [self.counts[state.id] for state in states]

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return self.allocator.expand(trees)


class Collection:
    """Collects the rollouts of an iteration and returns its packed updates, one for each optimiser step.

    With ``rollout.staleness=k``, up to k further iterations are sampled while the policy is trained, so that iteration
    i is trained on rollouts of policy i - k (``training.collect_ahead``). The engine is then busy during training, and
    other code that needs the engine must call :meth:`settle` first. If a run with staleness has several processes, the
    first process samples for all processes, with servers, and sends each collection to all processes.

    Args:
        parts: the parts of the method. Without an allocator nothing is sampled, and the trees are demonstrations.
        states: the states at which rollouts may start.
        player: samples rollouts. Each process of the run samples for its own part of the states.
        reprofile: chooses new states during the run. None: the run uses ``states`` until its end.
        frozen: groups that were sampled before the first update (``rollout.frozen``), from which every iteration draws.
            None: every iteration samples its own groups.

    Raises:
        InputError: the run has ``rollout.staleness`` and several processes, but no servers.
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
        self.settled = 0.0  # seconds that :meth:`settle` has waited since the last collection was taken
        self.halted = False
        self.sampled = parts.allocator is not None
        self.staleness = rollout.staleness if self.sampled else 0
        self.handed = bool(self.staleness) and self.distributed.world > 1  # whether the first process samples for all
        if self.handed and not self.distributed.served:
            raise InputError(
                f"rollout.staleness={self.staleness}: a run in several processes needs engine=vllm for this setting; "
                "set engine=vllm, rollout.staleness=0 or trainer.devices=1"
            )
        served = self.distributed.served and getattr(player.engine, "schedule", "rounds") == "free"
        alone = parts.judged is not None or frozen is not None or not hasattr(module.model, "get_base_model")
        self.ahead = Ahead(
            module,
            player,
            self._gather,
            settings.iterations,
            self.staleness,
            loads=self.sampled and frozen is None,
            beside=bool(self.staleness) and served and not alone,
            handed=self.handed,
        )
        self.by_root = {} if self.sampled else demonstrated_paths(states)
        roots = states if self.sampled else [turns[0] for turns in self.by_root.values()]
        if frozen is not None:
            roots = frozen.states
        # memory of the advantage rule; saved in the checkpoint (training/datamodule.py)
        self.memory: dict[str, float] = {}
        self.collector = Collector(
            select=reprofile or Batches(roots, settings.seed, rollout.states, rollout.trajectories),
            play=frozen or (partial(self._roll_out, player) if self.sampled else self._demonstrate),
            reward=parts.judged or (self._reward if parts.reward else lambda tree: {}),
            advantage=parts.advantage or Imitation(),
            row_tokens=update.row_tokens,
            batch_tokens=update.batch_tokens,
            steps=update.steps,
            max_refills=rollout.max_refills,
            gather=list if self.handed or not self.sampled else self.distributed.gather,
            seed=settings.seed,
        )

    def __call__(self, iteration: int) -> list[Update]:
        if self.reprofile is not None:
            self.reprofile.prepare(iteration)
        began, cpu_began = time.monotonic(), time.process_time()
        sampler = self.module.earlier[0] if self.module.earlier else None
        self.ahead.start(iteration, self.memory)
        gathered = self.ahead.take(iteration, self.memory)
        experience, self.memory = gathered.experience, dict(gathered.experience.memory)
        self.module.staleness, stale_turns = self._stale(experience) if self.sampled else (0, 0.0)
        packing = time.monotonic()
        packed = self.collector.updates(experience)
        done = time.monotonic()
        seconds, waited = gathered.seconds + done - packing, self.settled + done - began
        self.settled = 0.0
        self.module.stale_mismatch = stale_mismatch(self.module, sampler, experience.trees, self.settings.update)
        learned = self.parts.predictor.learn(iteration, experience) if self.parts.predictor else {}
        if self.sampled:
            learned |= sampling_metrics(self._add(gathered.engine), self.module.staleness, stale_turns, waited)
        if self.reprofile is not None:
            learned |= self.reprofile.collected(experience)
        cost = self._add(gathered.cost)
        judge = self._add(gathered.judge) if self.parts.judged else {}
        whole = replace(gathered, cost=cost, judge=judge, seconds=seconds)
        self.recorder.collected(iteration, whole, packed, learned, cpu_began, done - began)
        self.ahead.taken(iteration, self.memory)
        return self.module.with_near([update.share(self.distributed.rank, self.distributed.world) for update in packed])

    def settle(self) -> None:
        """Waits until the collections of later iterations are done and the engine is free.

        All processes must call this method. If the first process samples for all processes, the other processes wait
        here. Without this barrier, they would wait in the first collective operation of the evaluation, and could
        exceed its time limit.
        """
        began = time.monotonic()
        self.ahead.overlap.settle()
        self.distributed.barrier()
        waited = time.monotonic() - began
        self.settled += waited
        self.recorder.waited(waited)

    def halt(self) -> None:
        """Stops the collections of later iterations at the next sampled turns, and drops these collections."""
        self.halted = True
        self.ahead.overlap.settle()

    def _gather(self, iteration: int, began: float, player: Player, memory: Memory) -> Gathered:
        before = asdict(player.tally)
        collector = (
            self.collector if player is self.player else replace(self.collector, play=partial(self._roll_out, player))
        )
        experience = collector.collect(iteration, memory)
        cost = {name: count - before[name] for name, count in asdict(player.tally).items()}
        judge = self.parts.judged.report() if self.parts.judged else {}
        engine = player.engine.report() if self.sampled else {}
        return Gathered(experience, cost, time.monotonic() - began, judge, engine)

    def _add(self, mine: Mapping[str, float]) -> dict[str, float]:
        """Returns the sum of each count over all processes. If the first process collects for all processes
        (``handed``), ``mine`` is returned.
        """
        return dict(mine) if self.handed else self.distributed.add(mine)

    def _stale(self, experience: Experience) -> tuple[int, float]:
        """Returns by how many training iterations the policies that sampled are behind the current policy: the number
        for the oldest tree, and the mean over all turns.

        Raises:
            RuntimeError: rollouts are older than ``rollout.staleness`` allows, or newer than the policy.
        """
        version = self.module.version
        most = math.inf if self.frozen is not None else self.staleness
        trees = [version - tree.version for tree in experience.trees]
        turns = [version - turn.version for tree in experience.trees for turn in tree.turns]
        for stale in {*trees, *turns}:
            if not 0 <= stale <= most:
                raise RuntimeError(f"policy {version} cannot be trained on rollouts of policy {version - stale}")
        return max(trees, default=0), sum(turns) / max(1, len(turns))

    def _reward(self, tree: RolloutTree) -> Rewards:
        assert self.parts.reward is not None
        with self.player.lock:  # the reward may use the environment
            return self.parts.reward(tree)

    def _roll_out(self, player: Player, states: Sequence[State], key: object) -> list[RolloutTree]:
        parts, allocator = self.parts, self.parts.allocator
        assert allocator is not None and parts.gate is not None
        if self.distributed.world > 1:
            allocator = Allocated(allocator, dict(zip((state.id for state in states), allocator(states), strict=True)))
        return player.play(
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
