"""Computes the floor of a rollout, a lower bound of the time on this machine, from measured rates and counted work.

The floor is the larger of bytes / bandwidth and operations / rate. Both rates are measured. The work is counted on
trees that were really played, as if nothing were ever computed or read twice:

    bytes       weights once per decoding step, keys and values of distinct histories once per step, and each key and
                value written once
    operations  every distinct token through the layers once, attention over its history, the head where a token is
                drawn
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from turnwise.rollouts.pack import Update
from turnwise.types import RolloutTree


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes read per second and floating-point operations per second, both with all threads."""

    bandwidth: float
    operations: float


@dataclass(frozen=True, slots=True)
class Counted:
    """The bytes and operations of rollouts."""

    bytes: float
    operations: float
    steps: int  # number of decoding steps that follow one another
    step_bytes: float  # bytes read in a mean step

    def seconds(self, rates: Rates) -> float:
        return max(self.bytes / rates.bandwidth, self.operations / rates.operations)

    def binds(self, rates: Rates) -> str:
        return "memory" if self.bytes / rates.bandwidth > self.operations / rates.operations else "arithmetic"


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a model, in numbers (not bytes) except ``width``, which is the bytes of one number."""

    layers: int
    attention: int  # number of query heads times head size
    kept: int  # numbers kept of one token in one layer: its keys and values
    linear: int  # weights of the layers through which every token passes
    head: int
    width: int

    @classmethod
    def of(cls, model: Any) -> ModelSize:
        config = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        embedding = model.get_input_embeddings().weight.numel()
        head = model.get_output_embeddings().weight
        tied = head.data_ptr() == model.get_input_embeddings().weight.data_ptr()
        total = sum(p.numel() for name, p in model.named_parameters() if "lora_" not in name)
        return cls(
            layers=config.num_hidden_layers,
            attention=config.num_attention_heads * head_dim,
            kept=2 * config.num_key_value_heads * head_dim,
            linear=total - embedding - (0 if tied else head.numel()),
            head=head.numel(),
            width=head.element_size(),
        )


def count(trees: Sequence[RolloutTree], size: ModelSize) -> Counted:
    """Returns the least work to play these trees turn by turn, with all rollouts together.

    At a step, equal histories count once: each distinct token of the union of the live histories is read once. In
    lexicographic order, neighbouring paths share the longest prefixes, so the size of the union is the sum of the
    lengths minus the sum of the neighbours' common prefixes.
    """
    read = written = operations = 0.0
    longest: dict[int, int] = {}  # turn -> most tokens that a rollout wrote in it
    for tree in trees:
        paths = sorted((_Path.of(tree, leaf) for leaf in tree.leaves()), key=lambda path: path.ids)
        common = [_common(a.ids, b.ids) for a, b in itertools.pairwise(paths)]
        distinct = sum(len(path.ids) for path in paths) - sum(common)
        written += distinct
        operations += 2.0 * size.linear * distinct
        operations += 4.0 * size.layers * size.attention * _depths(paths, common)
        for turn in range(max(len(path.actions) for path in paths)):
            active = [i for i, path in enumerate(paths) if turn < len(path.actions)]
            for step in range(max(paths[i].actions[turn][1] for i in active)):
                live = [i for i in active if step < paths[i].actions[turn][1]]
                lengths = [paths[i].actions[turn][0] + step for i in live]
                shared = [
                    min(*common[a:b], x, y) for a, b, x, y in zip(live, live[1:], lengths, lengths[1:], strict=False)
                ]
                read += sum(lengths) - sum(shared)
                contexts = len(live) - sum(s == x == y for s, x, y in zip(shared, lengths, lengths[1:], strict=False))
                operations += 2.0 * size.head * contexts
            longest[turn] = max(longest.get(turn, 0), *(paths[i].actions[turn][1] for i in active))
    steps = sum(longest.values())
    weights = float(size.linear + size.head) * steps
    keys = float(size.layers * size.kept) * (read + written)
    total = (weights + keys) * size.width
    return Counted(total, operations, steps, total / max(steps, 1))


def update_operations(update: Update, size: ModelSize) -> float:
    """Returns the operations of one packed LoRA update, forward and backward, without recomputation.

    Frozen weights take two products per token (forward, and the gradient of their input), attention takes three times
    its forward pass, and the head takes two products per predicted token. The adapter, with one or two percent of the
    operations, is not counted.
    """
    total = 0.0
    for batch in update.batches:
        real = batch.end_BS > 0
        total += 2 * 2.0 * size.linear * float(real.sum())
        total += 3 * 4.0 * size.layers * size.attention * float((batch.position_BS[real] + 1).sum())
        total += 2 * 2.0 * size.head * len(batch.target_U)
    return total


@dataclass(frozen=True, slots=True)
class _Path:
    ids: list[int]
    actions: list[tuple[int, int]]  # for each turn: number of tokens before it and of it

    @classmethod
    def of(cls, tree: RolloutTree, leaf: int) -> _Path:
        ids, actions = list(tree.state.ids), []
        for index in tree.path(leaf):
            turn = tree.turns[index]
            actions.append((len(ids), len(turn.action_ids)))
            ids += turn.action_ids + turn.observation_ids
        return cls(ids[:-1], actions)  # no layer computes the last token, because no token is drawn after it


def _depths(paths: Sequence[_Path], common: Sequence[int]) -> float:
    """Returns the sum of the history lengths over distinct tokens."""
    total = 0.0
    for path, shared in zip(paths, [0, *common]):
        n = len(path.ids)
        total += n * (n + 1) / 2 - shared * (shared + 1) / 2
    return total


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return min(len(a), len(b))


def calibrate(step_bytes: float, dtype: torch.dtype, device: torch.device, seconds: float = 0.5) -> Rates:
    """Measures both rates for about ``seconds`` each, as medians of repeated runs."""
    numbers = max(1 << 16, int(step_bytes / 4))
    buffer = torch.ones(numbers, dtype=torch.float32, device=device)
    read = _median_seconds(buffer.sum, device, seconds)
    side = 1024 if device.type == "cpu" else 8192
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = _median_seconds(lambda: left @ right, device, seconds)
    return Rates(numbers * 4 / read, 2.0 * side**3 / product)


def _median_seconds(work: Callable[[], object], device: torch.device, seconds: float) -> float:
    def once() -> float:
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    once()
    taken: list[float] = []
    while sum(taken) < seconds or len(taken) < 5:
        taken.append(once())
    return statistics.median(taken)
