"""Samples a frozen buffer: groups of rollouts from the base policy, from which every update of the run draws.

The frozen buffer is the second tier of Selective Rollout (arXiv:2605.05802, section 4.2). A run with a gate and a run
without a gate then differ only in the groups that enter an update. A group that the gate would have stopped is sampled
to its end and marked as stopped. The buffer is one file, written when it is complete.
"""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise.files import atomic_write
from turnwise.methods.allocate import Allocator
from turnwise.methods.gate import Gate
from turnwise.methods.states import Batches
from turnwise.rollouts.player import Player
from turnwise.training.distributed import DistributedContext
from turnwise.training.metrics import trajectories
from turnwise.training.module import PolicyModule
from turnwise.training.parts import Parts, Settings
from turnwise.training.progress import Phases
from turnwise.types import GateDecision, RolloutTree, State, Turn

TOGETHER = 32  # number of groups that are sampled together


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


def record(
    player: Player,
    allocator: Allocator,
    gate: Gate,
    states: Sequence[State],
    key: object,
    begin: Callable[[], None],
    distributed: DistributedContext,
    advance: Callable[[int], None],
) -> Frozen:
    """Samples a group of rollouts at each state, and records the decisions of the gate, which stops no group.

    Args:
        key: the key from which the seeds of the random draws are derived.
        begin: function that gives the engine the policy's weights and so empties the engine's cache. It is called
            before each ``TOGETHER`` groups.
        distributed: the processes of the run. Each process samples a part of the groups, and gets all of them.
        advance: is called with numbers of newly sampled groups.
    """
    local, shadow = player.using(player.sampling, player.max_turns), Shadow(gate)
    began, cpu_began = time.monotonic(), time.process_time()
    trees: list[RolloutTree] = []
    count = 0.0
    for start in range(0, len(states), TOGETHER):
        begin()
        part = states[start : start + TOGETHER]
        played = local.play(distributed.share(part), allocator, shadow, key)
        for tree in played:
            tree.stopped = tree.state.id in shadow.cut
        count += sum(map(trajectories, played))
        trees += distributed.gather(played)
        advance(len(part))
    mine = {**asdict(local.tally), "trajectories": count}
    cost = distributed.add(mine | {"cpu_seconds": time.process_time() - cpu_began})
    cost["rollout_seconds"] = time.monotonic() - began
    return Frozen({tree.state.id: tree for tree in trees}, cost, distributed)


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


def write_buffer(path: Path, frozen: Frozen) -> None:
    content = json.dumps({"cost": frozen.cost, "trees": [tree_row(tree) for tree in frozen.trees.values()]})
    with atomic_write(path) as part:
        part.write_bytes(gzip.compress(content.encode(), mtime=0))


def read_buffer(path: Path, states: Sequence[State], distributed: DistributedContext) -> Frozen | None:
    """Returns the buffer at ``path``, or None if there is no readable buffer of these states."""
    with suppress(OSError, EOFError, ValueError, zlib.error, LookupError, TypeError):
        content = json.loads(gzip.decompress(path.read_bytes()))
        rows = content["trees"]
        if [(state.id, list(state.ids)) for state in states] == [(row["state"], row["ids"]) for row in rows]:
            trees = map(read_tree, states, rows)
            return Frozen({tree.state.id: tree for tree in trees}, dict(content["cost"]), distributed)
    return None


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


def frozen_groups(
    settings: Settings, parts: Parts, states: Sequence[State], player: Player, module: PolicyModule, phases: Phases
) -> Frozen | None:
    """Samples groups of rollouts from the base policy at ``rollout.frozen`` states, unless an earlier start of the run
    has done so. Returns this frozen buffer, or None if ``rollout.frozen`` is not set.
    """
    if (count := settings.rollout.frozen) is None:
        return None
    assert parts.allocator is not None and parts.gate is not None
    module.to(settings.device)
    path, distributed = settings.folder / "buffer.json.gz", module.distributed
    chosen = drawn(states, count, settings.seed)
    with phases.phase("record", count) as advance:
        frozen = read_buffer(path, chosen, distributed)
        if all(distributed.gather([frozen is not None])):
            advance(count, already=True)
            return frozen
        key, begin = (settings.seed, "frozen"), partial(module.sync_weights, player.engine)
        frozen = record(player, parts.allocator, parts.gate, chosen, key, begin, distributed, advance)
        if distributed.first:
            write_buffer(path, frozen)
        return frozen
