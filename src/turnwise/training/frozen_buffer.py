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
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from turnwise.errors import InputError
from turnwise.files import atomic_write
from turnwise.methods.allocate import Allocator
from turnwise.methods.gate import Gate
from turnwise.methods.states import Batches
from turnwise.rollouts.player import Player
from turnwise.training.build_run import Parts, Settings
from turnwise.training.distributed import DistributedContext
from turnwise.training.group_metrics import trajectories
from turnwise.training.policy_module import PolicyModule
from turnwise.training.progress import Phases
from turnwise.types import RolloutTree, State, Task

TOGETHER = 32  # number of groups that are sampled together


@dataclass(slots=True)
class BufferGate(Gate):
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
    """The sampled buffer, which returns the stored trees of given states (:data:`turnwise.rollouts.collect.Play`), in each
    process those of its own part of the states.

    A tree that the gate would have stopped is complete but has ``stopped`` set, so that updates leave it out. The
    probability ratios in the loss are always relative to the base policy, to which the stored log-probs belong.
    """

    trees: Mapping[str, RolloutTree]  # by state id, in the order of sampling
    cost: Mapping[str, float] = field(default_factory=dict)  # under the names of the recorder's counters
    distributed: DistributedContext = field(default_factory=DistributedContext)

    @property
    def states(self) -> list[State]:
        return [tree.state for tree in self.trees.values()]

    def __call__(self, states: Sequence[State], key: object) -> list[RolloutTree]:
        return [self.trees[state.id] for state in self.distributed.share(states)]


def record_buffer(
    player: Player,
    allocator: Allocator,
    gate: Gate,
    states: Sequence[State],
    key: object,
    begin: Callable[[], None],
    distributed: DistributedContext,
    advance: Callable[[int], None],
) -> Frozen:
    """Samples a group of rollouts at each state, each process a part, and records the decisions of the gate, which stops no
    group. ``begin`` gives the engine the policy's weights and so empties its cache, before each ``TOGETHER`` groups.
    """
    local, shadow = player.using(player.sampling, player.max_turns), BufferGate(gate)
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


_TREES = TypeAdapter(list[RolloutTree])


def write_buffer(path: Path, frozen: Frozen) -> None:
    """Writes the buffer as JSON, from which every number comes back with all its digits. Of a state, only its id and
    tokens are stored, because the data of a task may have values that JSON does not know.
    """
    bare = Task("", "", "")
    trees = [replace(tree, state=State(tree.state.id, bare, tree.state.ids)) for tree in frozen.trees.values()]
    rows = json.dumps([asdict(tree) for tree in trees], default=_listed)
    with atomic_write(path) as part, gzip.open(part, "wt", encoding="utf-8") as stream:
        stream.write(f"{json.dumps(frozen.cost)}\n{rows}")


def _listed(value: object) -> list[int]:
    if not isinstance(value, set | frozenset):  # ``invalid`` of a tree is a set
        raise TypeError(f"a rollout tree holds {value!r}, which JSON does not know")
    return sorted(value)


def read_buffer(path: Path, states: Sequence[State], distributed: DistributedContext) -> Frozen | None:
    with suppress(OSError, EOFError, ValueError, zlib.error):
        cost, _, content = gzip.decompress(path.read_bytes()).partition(b"\n")
        trees = _TREES.validate_python(json.loads(content))
        if [(tree.state.id, tree.state.ids) for tree in trees] == [(state.id, state.ids) for state in states]:
            whole = {state.id: replace(tree, state=state) for state, tree in zip(states, trees, strict=True)}
            return Frozen(whole, json.loads(cost), distributed)
    return None


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
    if len(states) < count:
        raise InputError(
            f"rollout.frozen={count}: this run has {len(states)} states to sample from, which is too few; lower "
            "rollout.frozen, or provide more states (states.count or data.trajectories)"
        )
    chosen = Batches(states, settings.seed, count)(0)
    with phases.phase("record", count) as advance:
        frozen = read_buffer(path, chosen, distributed)
        if all(distributed.gather([frozen is not None])):
            advance(count, already=True)
            return frozen
        key, begin = (settings.seed, "frozen"), partial(module.sync_weights, player.engine)
        frozen = record_buffer(player, parts.allocator, parts.gate, chosen, key, begin, distributed, advance)
        if distributed.first:
            write_buffer(path, frozen)
        return frozen
