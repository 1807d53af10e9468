"""Samples a frozen buffer: groups of rollouts from the base policy, from which every update of the run draws.

The frozen buffer is the second tier of Selective Rollout (arXiv:2605.05802, section 4.2). A run with a gate and a run
without a gate then differ only in the groups that enter an update. A group that the gate would have stopped is sampled
to its end and marked as stopped.
"""

from __future__ import annotations

import gzip
import json
import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.algo.allocators.allocator import Allocator
from turnwise.algo.gates.gate import Gate
from turnwise.algo.states.batches import Batches
from turnwise.errors import InputError
from turnwise.files import atomic_write
from turnwise.rollouts.player import Player
from turnwise.training.branch_metrics import trajectories
from turnwise.training.build_parts import Parts, Settings
from turnwise.training.distributed import DistributedContext
from turnwise.training.module import PolicyModule
from turnwise.training.progress import Phases
from turnwise.types import GateDecision, RolloutTree, State, Task, Turn

logger = logging.getLogger(__name__)

SHARD = 32  # number of groups that are sampled and written together; constant, so that batches are equal after a kill


@dataclass(slots=True)
class Shadow(Gate):
    """Records the decisions of ``gate``, but stops no rollout. ``cut`` holds the ids of the states whose trees ``gate``
    would have stopped.
    """

    gate: Gate
    cut: set[str] = field(default_factory=set)

    def __call__(self, tree: RolloutTree, step: int) -> bool:
        if tree.state.id not in self.cut and self.gate(tree, step):
            self.cut.add(tree.state.id)
        return False

    def at_end(self, tree: RolloutTree) -> bool:
        if tree.state.id not in self.cut and self.gate.at_end(tree):
            self.cut.add(tree.state.id)
        return False


@dataclass(frozen=True, slots=True)
class Frozen:
    """The sampled buffer, which returns the stored trees of given states (:data:`turnwise.rollouts.collect.Play`).

    A tree that the gate would have stopped is complete but has ``stopped`` set, so that updates leave it out. The
    stored log-probs belong to the base policy. The probability ratios in the loss are therefore always relative to the
    base policy.

    Attributes:
        trees: map from state id to tree, in the order of sampling.
        cost: the cost of sampling the trees, under the names of the recorder's counters.
        distributed: the processes of the run. Each process returns the trees of its own part of the states.
    """

    trees: Mapping[str, RolloutTree]
    cost: Mapping[str, float] = field(default_factory=dict)
    distributed: DistributedContext = field(default_factory=DistributedContext)

    @property
    def states(self) -> list[State]:
        return [tree.state for tree in self.trees.values()]

    def __call__(self, states: Sequence[State], key: object) -> list[RolloutTree]:
        return [self.trees[state.id] for state in self.distributed.share(states)]


def drawn(states: Sequence[State], count: int, seed: int) -> list[State]:
    """Draws ``count`` of ``states`` for the buffer. Equal seeds give equal draws.

    Raises:
        InputError: there are fewer than ``count`` states.
    """
    if len(states) < count:
        raise InputError(
            f"rollout.frozen={count}: this run has {len(states)} states to sample from, which is too few; lower "
            "rollout.frozen, or provide more states (states.count or data.trajectories)"
        )
    return Batches(states, seed, count)(0)


@dataclass(frozen=True, slots=True)
class Recording:
    """Samples the groups of rollouts of a frozen buffer and stores the groups in files (shards).

    Attributes:
        gate: the gate whose decisions are recorded. The gate stops no group.
        folder: the folder of the files.
        key: the key from which the seeds of the random draws are derived.
        begin: function that gives the engine the policy's weights and so empties the engine's cache. It is called
            before each file is sampled.
        distributed: the processes of the run. Each process samples a part of the groups. The first process writes the
            files.
    """

    player: Player
    allocator: Allocator
    gate: Gate
    folder: Path
    key: object
    begin: Callable[[], None]
    distributed: DistributedContext = field(default_factory=DistributedContext)

    def __call__(self, states: Sequence[State], on_done: Callable[[int], None] = lambda steps: None) -> Frozen:
        """Samples the groups that are not in the files yet, and returns all groups as read from the files. If the
        process is killed, at most ``SHARD`` sampled groups are lost.

        Args:
            states: the states of the buffer, in the same order at every start.
            on_done: is called after each file with its number of states.

        Raises:
            InputError: a file contains groups of other states.
        """
        trees: dict[str, RolloutTree] = {}
        cost: Counter[str] = Counter()
        for number, start in enumerate(range(0, len(states), SHARD)):
            part, path = states[start : start + SHARD], self.folder / f"shard-{number:05d}.json.gz"
            shard = _read(path) if self.distributed.first else None
            if self.distributed.broadcast(shard is None if self.distributed.first else None):
                self.begin()
                self._sample(part, path)
            if (shard := shard or _read(path)) is None:
                raise InputError(
                    f"{path}: the file is damaged although it was just written; check the disk, and start the run again"
                )
            sampled, paid = shard
            found = [(tree.state.id, list(tree.state.ids)) for tree in sampled]
            if [(state.id, list(state.ids)) for state in part] != found:
                raise InputError(
                    f"{path}: contains groups of other states than those of this run, probably because the data or the "
                    "code changed; set fresh=true to rename the run's folder and sample again"
                )
            trees |= {state.id: replace(tree, state=state) for state, tree in zip(part, sampled, strict=True)}
            cost.update(paid)
            on_done(len(part))
        return Frozen(trees, dict(cost), self.distributed)

    def _sample(self, part: Sequence[State], path: Path) -> None:
        local, shadow = self.player.using(self.player.sampling, self.player.max_turns), Shadow(self.gate)
        began, cpu_began = time.monotonic(), time.process_time()
        trees = local.play(self.distributed.share(part), self.allocator, shadow, self.key)
        for tree in trees:
            tree.stopped = tree.state.id in shadow.cut
        mine = {**asdict(local.tally), "trajectories": sum(map(trajectories, trees))}
        cost = self.distributed.add(mine | {"cpu_seconds": time.process_time() - cpu_began})
        rows = self.distributed.gather([tree_row(tree) for tree in trees])
        cost["rollout_seconds"] = time.monotonic() - began
        if self.distributed.first:
            data = json.dumps({"cost": cost, "trees": rows}).encode()
            with atomic_write(path) as place:
                place.write_bytes(gzip.compress(data, mtime=0))
        self.distributed.barrier()  # the other processes read the file that the first has written


def tree_row(tree: RolloutTree) -> dict[str, Any]:
    """Returns a tree as a JSON object, from which :func:`read_tree` restores the tree without rounding errors."""
    return {
        "state": tree.state.id,
        "ids": list(tree.state.ids),
        "turns": [asdict(turn) for turn in tree.turns],
        "stopped": tree.stopped,
        "invalid": sorted(tree.invalid),
        "version": tree.version,
        "looks": [{"step": look.step, "values": dict(look.values), "stop": look.stop} for look in tree.looks],
    }


def read_tree(state: State, row: Mapping[str, Any]) -> RolloutTree:
    """Returns the tree from which :func:`tree_row` made ``row``, with ``state`` as its root state."""
    return RolloutTree(
        state,
        [Turn(**turn) for turn in row["turns"]],
        row["stopped"],
        set(row["invalid"]),
        row["version"],
        [GateDecision(**look) for look in row["looks"]],
    )


def _read(path: Path) -> tuple[list[RolloutTree], dict[str, float]] | None:
    """Reads a shard and returns its trees, whose states contain only an id and tokens, and their cost. Returns None if
    there is no file, or if the file is damaged. A damaged file is renamed with the suffix ``.damaged``.
    """
    if not path.exists():
        return None
    try:
        shard = json.loads(gzip.decompress(path.read_bytes()))
        states = [State(row["state"], Task("", "", ""), tuple(row["ids"])) for row in shard["trees"]]
        return list(map(read_tree, states, shard["trees"])), dict(shard["cost"])
    except (OSError, EOFError, ValueError, zlib.error, LookupError, TypeError):
        path.replace(path.with_suffix(".damaged"))
        logger.warning("%s is damaged; its groups are sampled again", path)
        return None


def frozen_groups(
    settings: Settings, parts: Parts, states: Sequence[State], player: Player, module: PolicyModule, phases: Phases
) -> Frozen | None:
    """Samples groups of rollouts from the base policy at ``rollout.frozen`` states, and returns this frozen buffer, or
    None if ``rollout.frozen`` is not set.
    """
    if (count := settings.rollout.frozen) is None:
        return None
    assert parts.allocator is not None and parts.gate is not None
    module.to(settings.device)
    begin = partial(module.sync_weights, player.engine)
    folder, key = settings.folder / "buffer", (settings.seed, "frozen")
    with phases.phase("record", count) as advance:
        recording = Recording(player, parts.allocator, parts.gate, folder, key, begin, module.distributed)
        return recording(drawn(states, count, settings.seed), advance)
