"""How many groups a gate stopped, and an estimate of what that saved."""

from __future__ import annotations

from collections.abc import Mapping

from turnwise.rollouts.collect import Experience
from turnwise.types import RolloutTree

PREFIX = "gate/"  # of the counters of a run


def gate_counts(experience: Experience, played: bool = True) -> dict[str, float]:
    """Counts of one collection; those of several add up.

    ``groups`` and ``cut`` are trees and stopped trees, ``looked`` those that the gate looked at, ``open`` the rollouts that were
    under way when it stopped theirs. ``passed`` are rollouts that went on after the gate's last look at their tree, and
    ``turns`` and ``tokens`` what they took from there to their end.

    Args:
        experience: the collection.
        played: whether its trees were played for it. Those of a frozen buffer are drawn again and again: nothing is saved anew.
    """
    counts = dict.fromkeys(("groups", "cut", "looked", "open", "passed", "turns", "tokens"), 0.0)
    for tree in experience.trees:
        counts["groups"] += 1
        counts["cut"] += tree.stopped
        counts["looked"] += bool(tree.looks)
        if tree.looks and played:
            for name, value in _from_last_look(tree).items():
                counts[name] += value
    return {PREFIX + name: value for name, value in counts.items()}


def _from_last_look(tree: RolloutTree) -> dict[str, float]:
    step = tree.looks[-1].step
    depth: list[int] = []  # turns from the root to each turn, itself included
    for turn in tree.turns:
        depth.append(1 + (depth[turn.parent] if turn.parent >= 0 else 0))
    if tree.stopped:
        # The observation's tokens are appended only where a rollout goes on: not at its horizon, nor where its room is used up.
        return {"open": sum(bool(tree.turns[i].observation_ids) for i in tree.leaves() if i not in tree.invalid)}
    after = [turn for turn, at in zip(tree.turns, depth, strict=True) if at > step]
    return {
        "passed": depth.count(step + 1),
        "turns": len(after),
        "tokens": sum(len(turn.action_ids) for turn in after),
    }


def gate_result(counters: Mapping[str, float]) -> dict[str, float]:
    """The gate's entry in a result, from the run's counters.

    ``saved_turns`` and ``saved_tokens`` estimate what the stopped rollouts would have taken: as much as those that passed the
    look took after it, on average. They are left out where a rollout was stopped and none passed, for nothing tells then.
    """
    at = {name: counters.get(PREFIX + name, 0.0) for name in ("groups", "cut", "looked", "open", "passed")}
    result = {name: at[name] for name in ("groups", "looked", "cut")} | {"stopped_rollouts": at["open"]}
    if at["passed"] or not at["open"]:
        for name in ("turns", "tokens"):
            each = counters.get(PREFIX + name, 0.0) / at["passed"] if at["passed"] else 0.0
            result[f"saved_{name}"] = round(at["open"] * each)
    return result
