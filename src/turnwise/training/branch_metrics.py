"""Computes metrics of rollout trees: their cost, where they branch, and whether their branches differ in outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from turnwise.rollouts.collect import Experience
from turnwise.types import RolloutTree

DEPTHS = ((1, 1), (2, 3), (4, 7), (8, 15), (16, None))  # ranges of the number of turns before a branch; None: no limit
QUARTERS = 4
TOLERANCE = 1e-6  # rewards that differ by at most this much count as equal


def trajectories(tree: RolloutTree) -> float:
    """Returns the cost of a tree in TRACE's unit (arXiv:2606.11119, Appendix E.5): a rollout from the root costs 1, and
    a continuation (a rollout that starts after a turn) costs 1/2. Rollouts whose environment failed are not counted.
    """
    children = children_of(tree)
    continuations = sum(len(born) - 1 for turn, born in children.items() if turn >= 0 and born)
    return len(children[-1]) + continuations / 2


def branch_metrics(experience: Experience) -> dict[str, float]:
    """Returns metrics of the rollout trees of one iteration. The metrics ``branch/...`` are left out if no tree has a
    continuation.
    """
    trees = experience.trees
    metrics: dict[str, float] = {"train/states_skipped": experience.skipped}
    if trees:
        metrics["train/states_active"] = len(trees) / (len(trees) + experience.skipped)
        metrics["train/roots_per_group"] = sum(len(children_of(tree)[-1]) for tree in trees) / len(trees)
    placed = [place for tree in trees for place in branches(tree)]
    metrics["train/continuations"] = len(placed)
    if not placed:
        return metrics
    metrics["branch/depth"] = sum(depth for depth, _ in placed) / len(placed)
    metrics["branch/position"] = sum(position for _, position in placed) / len(placed)
    depths = Counter(_bucket(depth) for depth, _ in placed)
    quarters = Counter(min(int(position * QUARTERS), QUARTERS - 1) + 1 for _, position in placed)
    metrics |= {f"branch/depth_{name}": depths[name] / len(placed) for name in map(_name, DEPTHS)}
    metrics |= {f"branch/quarter_{n}": quarters[n] / len(placed) for n in range(1, QUARTERS + 1)}
    found = [contrast(tree, rewards["total"]) for tree, rewards in zip(trees, experience.rewards, strict=True)]
    leaves = sum(below for below, _ in found)
    if leaves:
        metrics["train/effective_prefixes"] = sum(mixed for _, mixed in found) / leaves
    return metrics


def branches(tree: RolloutTree) -> list[tuple[int, float]]:
    """Returns (depth, relative position) of each continuation, which is a rollout that starts after a turn.

    The depth is the number of turns before the continuation. The relative position is the depth divided by the number
    of turns of the rollout from which the continuation branches. Continuations whose environment failed are left out.
    """
    children = children_of(tree)
    placed = []
    for turn, born in children.items():
        if turn >= 0 and len(born) > 1:
            depth = length = len(tree.path(turn))
            at = turn
            while children[at]:  # the first child belongs to the original rollout
                at, length = children[at][0], length + 1
            placed += [(depth, depth / length)] * (len(born) - 1)
    return placed


def children_of(tree: RolloutTree) -> dict[int, list[int]]:
    """Returns turn -> the turns that follow it, without turns below which the environment failed in all rollouts."""
    valid = {turn for leaf in tree.valid_leaves() for turn in tree.path(leaf)}
    return {turn: [child for child in born if child in valid] for turn, born in tree.children().items()}


def contrast(tree: RolloutTree, total: Sequence[float]) -> tuple[int, int]:
    """Returns the number of leaves below all branch points, and the number of leaves below those branch points whose
    leaves have different rewards (TRACE Eq. 20).

    A branch point is a turn after which several rollouts continue. A leaf counts once for each branch point above it.
    Rollouts whose environment failed are left out, as in :func:`branches`.
    """
    children = children_of(tree)
    below: dict[int, list[float]] = {turn: [] for turn, born in children.items() if turn >= 0 and len(born) > 1}
    for leaf, reward in zip(tree.leaves(), total, strict=True):
        for turn in () if leaf in tree.invalid else tree.path(leaf)[:-1]:
            if turn in below:
                below[turn].append(reward)
    mixed = [group for group in below.values() if group and max(group) - min(group) > TOLERANCE]
    return sum(map(len, below.values())), sum(map(len, mixed))


def _bucket(depth: int) -> str:
    return next(_name((low, high)) for low, high in DEPTHS if high is None or depth <= high)


def _name(bounds: tuple[int, int | None]) -> str:
    low, high = bounds
    return f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"
