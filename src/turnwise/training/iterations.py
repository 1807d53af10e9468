"""The iterations of a run as Lightning's data: each collects its rollouts, or up to ``rollout.staleness`` further ones ahead.

With ``rollout.staleness=k``, up to k further iterations are sampled while the policy is trained: iteration i is trained
on rollouts of policy max(0, i - k). A checkpoint has the trained weights of the policies that sample for the iterations
after it, so a resumed run samples these iterations again, with the same result.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset

from turnwise.daemon_threads import DaemonThreads
from turnwise.errors import InputError
from turnwise.methods.reward import rewards_of
from turnwise.methods.sft import Imitation, demonstrated_paths, demonstration
from turnwise.methods.states import Batches
from turnwise.rollouts.collect import Collector, Experience, updates_of
from turnwise.rollouts.pack import Update
from turnwise.rollouts.player import Player
from turnwise.training.build_run import Parts, Settings
from turnwise.training.diagnostics import stale_mismatch
from turnwise.training.frozen_buffer import Frozen
from turnwise.training.policy_module import PolicyModule
from turnwise.training.profile import Reprofile
from turnwise.training.recorder import Gathered, Recorder
from turnwise.types import Rewards, RolloutTree, State

# -- rollouts of later iterations --------------------------------------------------------------------------------------


class IterationsAhead:
    """Collects iterations in a thread, one after the other, with the policies that ``rollout.staleness`` asks for.
    ``gather`` takes an iteration, its start time and the advantage rule's memory. If the first process samples for all
    processes of the run (``handed``), every process gets its collections.
    """

    def __init__(
        self, module: PolicyModule, player: Player, gather: Callable[..., Gathered], settings: Settings, handed: bool
    ) -> None:
        # trainer.fit -> Rollouts.train_dataloader -> Iteration.__iter__ -> Collection.__call__ -> Collector.collect
        self.module, self.player, self.gather = module, player, gather
        self.staleness, self.last, self.handed = settings.rollout.staleness, settings.iterations - 1, handed
        self.samples = module.distributed.first or not handed
        self.pending: dict[int, Future[Gathered]] = {}
        self._begun = -1  # the last iteration whose collection was started
        self._newest: Future[Gathered] | None = None
        self._threads = DaemonThreads(sys.maxsize, "collection")

    def sampler(self, iteration: int) -> dict[str, Any] | None:
        """Returns the stored policy that samples for ``iteration``, or None if the current policy does."""
        version = max(0, iteration - self.staleness)
        earlier = self.module.earlier if version < self.module.version else []
        return next((policy for policy in earlier if policy["version"] == version), None)

    def take(self, iteration: int, memory: Mapping[str, float]) -> Gathered:
        self._begin([iteration], memory)
        gathered = self.pending.pop(iteration).result() if self.samples else None
        return self.module.distributed.broadcast(gathered) if self.handed else gathered  # type: ignore[return-value]

    def go_on(self, iteration: int, memory: Mapping[str, float]) -> None:
        """Stores the current policy and starts the collections of the k iterations after ``iteration``. The policy is
        stored even if the run ends now, because the next start of the run samples with it.
        """
        if iteration >= self.last:
            return
        module = self.module
        if all(policy["version"] != module.version for policy in module.earlier):
            oldest = iteration + 1 - self.staleness
            module.earlier = [policy for policy in module.earlier if policy["version"] >= oldest] + [
                module.remembered()
            ]
        if not module.trainer.received_sigterm:
            self._begin(range(iteration + 1, min(iteration + self.staleness, self.last) + 1), memory)

    def settle(self) -> None:
        wait(self.pending.values())

    def _begin(self, iterations: Iterable[int], memory: Mapping[str, float]) -> None:
        for iteration in iterations:
            if iteration <= self._begun:
                continue
            self._begun = iteration
            load: Callable[[], None] = lambda: None  # noqa: E731
            with self.module.become(self.sampler(iteration)):
                if self.staleness == 1:  # the engine is idle now, so no copy of the weights is needed
                    self.module.sync_weights(self.player.engine)
                else:
                    load = self.module.stage_weights(self.player.engine)
            if self.samples:
                work = partial(self._collect, iteration, load, self._newest, memory, torch.get_num_threads())
                self._newest = self.pending[iteration] = self._threads.submit(work)

    def _collect(
        self,
        iteration: int,
        load: Callable[[], None],
        before: Future[Gathered] | None,
        memory: Mapping[str, float],
        threads: int,
    ) -> Gathered:
        """Loads the weights into the engine and collects ``iteration``, in a thread, when the collection ``before`` has
        ended. Loading empties the engine's cache, on which the last digits of log-probs depend, as a resume does.
        """
        torch.set_num_threads(threads)  # a new thread would use the number that any thread set last
        if before is not None:
            memory = before.result().experience.memory
        began = time.monotonic()
        load()
        return self.gather(iteration, began, memory)


# -- one iteration -----------------------------------------------------------------------------------------------------


class Iterations:
    """Collects the rollouts of an iteration and returns its packed updates, one for each optimiser step. Without an
    allocator, nothing is sampled, and the trees are demonstrations.

    With ``rollout.staleness``, the engine is busy during training (:class:`IterationsAhead`), and other code that needs the
    engine must call :meth:`settle` first. If a run with staleness has several processes, the first process samples for
    all processes, with servers (else an InputError is raised), and sends each collection to all processes.

    Args:
        reprofile: chooses new states during the run. None: the run uses ``states`` until its end.
        frozen: groups that were sampled before the first update, from which every iteration draws. None: each samples.
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
        rollout = settings.rollout
        self.settings, self.parts, self.player, self.module, self.recorder = settings, parts, player, module, recorder
        self.reprofile, self.frozen, self.distributed = reprofile, frozen, module.distributed
        self.settled = 0.0  # seconds that :meth:`settle` has waited since the last collection was taken
        self.halted = False
        self.sampled = parts.allocator is not None
        self.staleness = rollout.staleness if self.sampled else 0
        handed = bool(self.staleness) and self.distributed.world > 1
        if handed and not self.distributed.served:
            raise InputError(
                f"rollout.staleness={self.staleness}: a run in several processes needs engine=vllm for this setting; "
                "set engine=vllm, rollout.staleness=0 or trainer.devices=1"
            )
        self.ahead = IterationsAhead(module, player, self._gather, settings, handed) if self.staleness else None
        self.add = dict if handed else self.distributed.add
        self.by_root = {} if self.sampled else demonstrated_paths(states)
        roots = states if self.sampled else [turns[0] for turns in self.by_root.values()]
        if frozen is not None:
            roots = frozen.states
        self.memory: dict[str, float] = {}  # memory of the advantage rule; saved in the checkpoint
        self.collector = Collector(
            select=reprofile or Batches(roots, settings.seed, rollout.states, rollout.trajectories),
            play=frozen or (self._roll_out if self.sampled else self._demonstrate),
            reward=parts.judged or (self._reward if parts.reward else lambda tree: {}),
            advantage=parts.advantage or Imitation(),
            max_refills=rollout.max_refills,
            gather=list if handed or not self.sampled else self.distributed.gather,
            seed=settings.seed,
        )

    def __call__(self, iteration: int) -> list[Update]:
        if self.reprofile is not None:
            self.reprofile.prepare(iteration)
        began, cpu_began = time.monotonic(), time.process_time()
        if self.ahead is not None:
            sampler = self.ahead.sampler(iteration)
            gathered = self.ahead.take(iteration, self.memory)
        else:
            if self.sampled and self.frozen is None:
                self.module.sync_weights(self.player.engine)
            sampler = None
            gathered = self._gather(iteration, began, self.memory)
        experience, self.memory = gathered.experience, dict(gathered.experience.memory)
        self.module.staleness, stale_turns = self._stale(experience) if self.sampled else (0, 0.0)
        packing, update = time.monotonic(), self.settings.update
        packed = updates_of(experience, update.steps, update.row_tokens, update.batch_tokens)
        done = time.monotonic()
        seconds, waited = gathered.seconds + done - packing, self.settled + done - began
        self.settled = 0.0
        self.module.stale_mismatch = stale_mismatch(self.module, sampler, experience.trees) if sampler else {}
        learned = self.parts.predictor.learn(iteration, experience) if self.parts.predictor else {}
        if self.sampled:
            learned |= {f"engine/{name}": count for name, count in self.add(gathered.engine).items()}
            learned |= {"rollout/staleness": float(self.module.staleness), "rollout/turn_staleness": stale_turns}
            learned["seconds/waited"] = waited
        if self.reprofile is not None:
            learned |= self.reprofile.collected(experience)
        cost = self.add(gathered.cost)
        judge = self.add(gathered.judge) if self.parts.judged else {}
        whole = replace(gathered, cost=cost, judge=judge, seconds=seconds)
        self.recorder.collected(iteration, whole, packed, learned, cpu_began, done - began)
        if self.ahead is not None:
            self.ahead.go_on(iteration, self.memory)
        return self.module.with_near([part.share(self.distributed.rank, self.distributed.world) for part in packed])

    def settle(self) -> None:
        """Waits, in all processes, until the collections of later iterations are done and the engine is free. Without this
        barrier, processes that do not sample would wait in a collective operation, and could exceed its time limit.
        """
        began = time.monotonic()
        if self.ahead is not None:
            self.ahead.settle()
        self.distributed.barrier()
        waited = time.monotonic() - began
        self.settled += waited
        self.recorder.waited(waited)

    def halt(self) -> None:
        """Stops the collections of later iterations at the next sampled turns, and drops these collections."""
        self.halted = True
        if self.ahead is not None:
            self.ahead.settle()

    def _gather(self, iteration: int, began: float, memory: Mapping[str, float]) -> Gathered:
        before = asdict(self.player.tally)
        experience = self.collector.collect(iteration, memory)
        cost = {name: count - before[name] for name, count in asdict(self.player.tally).items()}
        judge = self.parts.judged.report() if self.parts.judged else {}
        engine = self.player.engine.report() if self.sampled else {}
        return Gathered(experience, cost, time.monotonic() - began, judge, engine)

    def _stale(self, experience: Experience) -> tuple[int, float]:
        """Returns by how many iterations the policies that sampled are behind the current policy: the number for the
        oldest tree, and the mean over all turns.
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
            return rewards_of(self.parts.reward, tree)

    def _roll_out(self, states: Sequence[State], key: object) -> list[RolloutTree]:
        parts = self.parts
        assert parts.allocator is not None and parts.gate is not None
        return self.player.play(
            self.distributed.share(states),
            parts.allocator,
            parts.gate,
            (self.settings.seed, key),
            among=states,
            on_turns=self._still,
            on_reply=parts.judged.ask if parts.judged else None,
        )

    def _still(self, turns: int) -> None:
        if self.halted:
            raise RuntimeError("the run ends: the collection ahead is dropped")

    def _demonstrate(self, states: Sequence[State], key: object) -> list[RolloutTree]:
        return [demonstration(self.by_root[state.id]) for state in states]


# -- iterations as Lightning's epochs ----------------------------------------------------------------------------------

Collect = Callable[[int], Sequence[Update]]  # takes an iteration, returns an update for each optimiser step


class Iteration(IterableDataset[Update]):
    """The dataset of one iteration: its ``steps`` updates, which are collected when the first update is requested. Without
    a length, Lightning would fetch a batch in advance, so before the previous update has changed the policy.
    """

    def __init__(self, collect: Collect, iteration: int, steps: int) -> None:
        self.collect, self.iteration, self.steps = collect, iteration, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Update]:
        yield from self.collect(self.iteration)


class Rollouts(LightningDataModule):
    """Provides the updates of a run to Lightning's trainer as training batches. A validation batch is the number of the
    iteration after which the policy is evaluated. The ``memory`` of ``remembering`` is saved in the checkpoint.
    """

    def __init__(self, collect: Collect, remembering: Iterations | None = None, steps: int = 1) -> None:
        super().__init__()
        self.collect, self.remembering, self.steps = collect, remembering, steps

    def state_dict(self) -> dict[str, Any]:
        return {} if self.remembering is None else dict(self.remembering.memory)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.remembering is not None:
            self.remembering.memory = dict(state_dict)

    def train_dataloader(self) -> Any:
        updates = Iteration(self.collect, self._iteration, self.steps)
        return DataLoader(updates, batch_size=None, num_workers=0)

    def val_dataloader(self) -> Any:
        return DataLoader(range(self._iteration, self._iteration + 1), batch_size=None, num_workers=0)  # type: ignore[arg-type]

    @property
    def _iteration(self) -> int:
        assert self.trainer is not None
        return self.trainer.current_epoch
