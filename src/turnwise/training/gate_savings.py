"""Counts the groups that a gate stopped, and estimates what this saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from turnwise.types import RolloutTree

PREFIX = "gate/"  # prefix of the counters
_NAMES = ("groups", "cut", "looked", "unstopped", "open", "passed", "turns", "tokens")


def gate_counts(trees: Iterable[RolloutTree], to_the_end: bool = False) -> dict[str, float]:
    """Counts the groups that were sampled. The counts of several collections add up.

    ``groups`` counts all groups, ``looked`` those that the gate decided on, and ``cut`` those that it decided to stop.
    ``unstopped`` counts those that were sampled to their end whatever it decided. ``open`` counts the rollouts that
    were running when the gate decided to stop their group. ``passed`` counts the rollouts that went on after the gate's
    last decision on their group, and ``turns`` and ``tokens`` what these needed from there to their end.

    Args:
        trees: every group, including those that a refill replaced later.
        to_the_end: whether groups that the gate decided to stop were still sampled to their end, as in a frozen buffer.
            Then the savings are known and need no estimate.
    """
    counts = dict.fromkeys(_NAMES, 0.0)
    for tree in trees:
        counts["groups"] += 1
        counts["unstopped"] += to_the_end
        counts["cut"] += tree.stopped
        counts["looked"] += bool(tree.looks)
        if not tree.looks or (to_the_end and not tree.stopped):
            continue
        if tree.stopped and not to_the_end:
            counts["open"] += _under_way(tree)
            continue
        after = _after_last_decision(tree)
        counts["open"] += after["passed"] * to_the_end
        for name, value in after.items():
            counts[name] += value
    return {PREFIX + name: value for name, value in counts.items()}


def _under_way(tree: RolloutTree) -> int:
    """Counts the rollouts of a stopped tree that would have gone on.

    Only a rollout that goes on has an observation's tokens. A rollout that reached its last turn or its maximal length
    has no such tokens.
    """
    return sum(bool(tree.turns[leaf].observation_ids) for leaf in tree.leaves() if leaf not in tree.invalid)


def _after_last_decision(tree: RolloutTree) -> dict[str, int]:
    step = tree.looks[-1].step
    depth: list[int] = []  # number of turns from the root to each turn, including it
    for turn in tree.turns:
        depth.append(1 + (depth[turn.parent] if turn.parent >= 0 else 0))
    after = [turn for turn, at in zip(tree.turns, depth, strict=True) if at > step]
    return {
        "passed": depth.count(step + 1),
        "turns": len(after),
        "tokens": sum(len(turn.action_ids) for turn in after),
    }


def gate_result(counters: Mapping[str, float]) -> dict[str, float]:
    """Returns the gate's entry in a result, from the run's counters.

    ``saved_turns`` and ``saved_tokens`` estimate what the stopped rollouts would have needed: on average as much as the
    rollouts that passed a decision needed after it. Both are left out if a rollout was stopped and none passed, because
    then there is no basis for an estimate. ``unstopped`` is left out if it is 0.
    """
    at = {name: counters.get(PREFIX + name, 0.0) for name in _NAMES}
    result = {name: at[name] for name in ("groups", "looked", "cut")} | {"stopped_rollouts": at["open"]}
    if at["passed"] or not at["open"]:
        for name in ("turns", "tokens"):
            result[f"saved_{name}"] = round(at["open"] * (at[name] / at["passed"] if at["passed"] else 0.0))
    return result | ({"unstopped": at["unstopped"]} if at["unstopped"] else {})
