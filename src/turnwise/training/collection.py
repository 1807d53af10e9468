"""The collection of one iteration: the parts of a method around the policy as it is now."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from turnwise.allocators.base import Allocator
from turnwise.rollouts.collect import Collector, Experience
from turnwise.rollouts.demonstrate import demonstration, paths
from turnwise.rollouts.judged import NOT_SUMS, Judged
from turnwise.rollouts.pack import Update
from turnwise.rollouts.play import Player
from turnwise.settings import Rollout
from turnwise.settings import Update as UpdateSettings
from turnwise.states.batches import Batches
from turnwise.training.module import PolicyModule
from turnwise.training.ranks import Ranks
from turnwise.training.recorder import Recorder
from turnwise.types import Credit, RolloutTree, State

SLOWEST = [name for name in NOT_SUMS if name.startswith("latency")]


class Imitation:
    """Credit of a demonstration: every demonstrated turn counts once."""

    wants_refill = False

    def __call__(self, tree: RolloutTree, rewards: object) -> Credit:
        return Credit([1.0] * len(tree.turns), [1.0] * len(tree.turns))


@dataclass(frozen=True, slots=True)
class Allocated:
    """An allocator whose budget over all states has been spent: ``counts`` by state id, of which a process plays some."""

    allocator: Allocator
    counts: Mapping[str, int]

    def __call__(self, states: Sequence[State]) -> list[int]:
        return [self.counts[state.id] for state in states]

    def expand(self, trees: Sequence[RolloutTree]) -> list[Mapping[int, int]]:
        return self.allocator.expand(trees)


class Learner(Protocol):
    """Something that learns beside the policy from what was collected."""

    def learn(self, iteration: int, experience: Experience) -> Mapping[str, float]:
        """Metrics of what it learned."""
        ...


class Collection:
    """iteration -> the update that the current policy's experience gives.

    Args:
        states: where the run may act.
        parts: allocator, gate, reward, advantage. Without an allocator nothing is sampled: the demonstrated path is the tree.
        rollout, update: how much an iteration collects, and how it is packed.
        player, module, recorder: who plays, whose weights, who writes it down.
        seed: of the order of the states and of every draw.
        judged: the reward with a judge beside it, where there is one; it takes the place of the reward alone.
        learners: what else learns from every collection.
        ranks: the processes of the run. Each plays its share of the states, then all know all trees, and each trains on its
            share of the micro-batches.
    """

    def __init__(
        self,
        states: Sequence[State],
        parts: Mapping[str, Any],
        rollout: Rollout,
        update: UpdateSettings,
        player: Player,
        module: PolicyModule,
        recorder: Recorder,
        seed: int,
        judged: Judged | None = None,
        learners: Sequence[Learner] = (),
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.judged, self.learners = judged, learners
        self.parts, self.player, self.module, self.recorder, self.seed = parts, player, module, recorder, seed
        self.sampled = parts["allocator"] is not None
        self.by_root = {} if self.sampled else paths(states)
        roots = states if self.sampled else [turns[0] for turns in self.by_root.values()]
        self.memory: dict[str, float] = {}  # the advantage's; it travels in the checkpoint (training/stream.py)
        self.collector = Collector(
            select=Batches(roots, seed, rollout.states, rollout.trajectories),
            play=self._play if self.sampled else self._demonstrate,
            reward=judged or parts["reward"] or (lambda tree: {}),
            advantage=parts["advantage"] or Imitation(),
            row_tokens=update.row_tokens,
            batch_tokens=update.batch_tokens,
            max_refills=rollout.max_refills,
            gather=self.ranks.gather if self.sampled else list,
        )

    def __call__(self, iteration: int) -> Update:
        began, cpu_began, before = time.monotonic(), time.process_time(), asdict(self.player.tally)
        if self.sampled:
            self.module.hand_to(self.player.engine)
        experience = self.collector.collect(iteration, self.memory)
        for tree in experience.trees if self.sampled else ():
            if tree.version != self.module.version:
                raise RuntimeError(f"rollouts of policy {tree.version} would train policy {self.module.version}")
        self.memory = dict(experience.memory)
        packed = self.collector.update(experience)
        seconds = time.monotonic() - began
        cost = self.ranks.add({name: count - before[name] for name, count in asdict(self.player.tally).items()})
        judge = self.ranks.add(self.judged.report(), largest=SLOWEST) if self.judged else {}
        learned = {
            name: value for learner in self.learners for name, value in learner.learn(iteration, experience).items()
        }
        if self.sampled:
            learned |= {f"engine/{name}": n for name, n in self.ranks.add(self.player.engine.report()).items()}
        self.recorder.collected(iteration, experience, packed, cost, seconds, judge, learned, cpu_began)
        return packed.share(self.ranks.rank, self.ranks.world)

    def _play(self, states: Sequence[State], key: object) -> list[RolloutTree]:
        allocator = self.parts["allocator"]
        if self.ranks.world > 1:
            allocator = Allocated(allocator, dict(zip((state.id for state in states), allocator(states), strict=True)))
        return self.player.play(
            self.ranks.share(states),
            allocator,
            self.parts["gate"],
            (self.seed, key),
            on_reply=self.judged.ask if self.judged else None,
        )

    def _demonstrate(self, states: Sequence[State], key: object) -> list[RolloutTree]:
        return [demonstration(self.by_root[state.id]) for state in states]
