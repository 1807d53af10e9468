"""Counts the groups that a gate stopped, and estimates the saved turns and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from turnwise.types import RolloutTree

PREFIX = "gate/"  # prefix of the counters' names
_NAMES = ("groups", "cut", "looked", "unstopped", "open", "passed", "turns", "tokens")


def gate_counts(trees: Iterable[RolloutTree], to_the_end: bool = False) -> dict[str, float]:
    """Counts the groups that were sampled, and the gate's decisions. Counts of several collections can be added.

    - ``groups``: all groups.
    - ``looked``: groups about which the gate made a decision.
    - ``cut``: groups that the gate decided to stop.
    - ``unstopped``: all groups if ``to_the_end`` is set, else 0.
    - ``open``: rollouts that were running when the gate decided to stop their group.
    - ``passed``: rollouts that continued after the gate's last decision about their group.
    - ``turns``, ``tokens``: turns and tokens that the ``passed`` rollouts took after the gate's last decision.

    Args:
        trees: all groups, including groups that a refill replaced later.
        to_the_end: whether groups that the gate decided to stop were sampled to their end, as in a frozen buffer. Then
            ``passed``, ``turns`` and ``tokens`` count only these groups and measure the savings directly.
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
    """Counts the rollouts of a stopped tree that would have continued: the rollouts whose last turn has observation
    tokens. A last turn has no observation tokens if the episode ended, or if the rollout reached its greatest number of
    turns or its greatest length.
    """
    return sum(bool(tree.turns[leaf].observation_ids) for leaf in tree.valid_leaves())


def _after_last_decision(tree: RolloutTree) -> dict[str, int]:
    step = tree.looks[-1].step
    depth = [len(tree.path(turn)) for turn in range(len(tree.turns))]
    after = [turn for turn, at in zip(tree.turns, depth, strict=True) if at > step]
    return {
        "passed": depth.count(step + 1),
        "turns": len(after),
        "tokens": sum(len(turn.action_ids) for turn in after),
    }


def gate_result(counters: Mapping[str, float]) -> dict[str, float]:
    """Returns the entry ``gate`` of the run's result, from the run's counters.

    ``saved_turns`` and ``saved_tokens`` estimate how many turns and tokens the stopped rollouts would have taken: as
    many on average as the rollouts that continued after the gate's last decision. Both values are left out if rollouts
    were stopped but no rollout continued. ``unstopped`` is left out if it is 0.
    """
    at = {name: counters.get(PREFIX + name, 0.0) for name in _NAMES}
    result = {name: at[name] for name in ("groups", "looked", "cut")} | {"stopped_rollouts": at["open"]}
    if at["passed"] or not at["open"]:
        for name in ("turns", "tokens"):
            result[f"saved_{name}"] = round(at["open"] * (at[name] / at["passed"] if at["passed"] else 0.0))
    return result | ({"unstopped": at["unstopped"]} if at["unstopped"] else {})
