"""Computes metrics of one iteration: how it was sampled, and of its groups the mean and spread of rewards, the fraction
of replies in the right format, and lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from turnwise.evaluation.suites import repeat_rate
from turnwise.rollouts.collect import Experience, Played
from turnwise.training.verdict_counts import domain_of


def totals_of(experience: Experience) -> list[list[float]]:
    """Returns one list for each group, with the total rewards of the group's rollouts.

    Rollouts whose environment failed are left out. Two kinds of groups have no list: those in which every rollout
    failed, and those that a gate stopped.
    """
    return _totals(zip(experience.trees, experience.rewards, strict=True))


def _totals(groups: Iterable[Played]) -> list[list[float]]:
    played = [rewards for tree, rewards in groups if not tree.stopped]
    totals = [[r for r in rewards["total"] if r == r] for rewards in played if "total" in rewards]
    return [total for total in totals if total]


def reward_metrics(experience: Experience, most: float | None = None) -> dict[str, float]:
    """Returns metrics of the groups of one iteration. A group counts as effective if its rollouts' rewards differ.

    Means of rewards leave out the groups that a gate stopped, because their episodes are incomplete.

    Args:
        experience: the trees of the iteration, with their rewards.
        most: the greatest reward that a rollout can earn, or None if it is unknown.
    """
    totals = totals_of(experience)
    metrics: dict[str, float] = {
        "train/groups": len(experience.trees),
        "train/groups_refilled": len(experience.replaced),
        "train/groups_cut": sum(tree.stopped for tree in experience.trees),
    }
    if most is not None:
        solved = [min(total) >= most - 1e-6 for total in [*totals, *_totals(experience.replaced)]]
        metrics["train/groups_solved"] = sum(solved)
    if totals:
        means = [sum(total) / len(total) for total in totals]
        stds = [
            (sum((r - mean) ** 2 for r in total) / len(total)) ** 0.5 for total, mean in zip(totals, means, strict=True)
        ]
        metrics["train/reward_mean"] = sum(means) / len(means)
        metrics["train/reward_std"] = sum(stds) / len(stds)
        mixed = [len(total) for total, std in zip(totals, stds, strict=True) if std > 1e-6]
        metrics["train/groups_mixed"], metrics["train/effective_groups"] = len(mixed), len(mixed) / len(stds)
        metrics["train/effective_leaves"] = sum(mixed) / sum(map(len, totals))
        metrics |= _by_domain(experience)
    readable = [value for rewards in experience.rewards for value in rewards.get("format", ()) if value == value]
    if readable:
        metrics["train/readable"] = sum(readable) / len(readable)
    turns = [turn for tree in experience.trees for turn in tree.turns]
    if turns:
        metrics["train/response_tokens"] = sum(len(turn.action_ids) for turn in turns) / len(turns)
        metrics["train/truncated"] = sum(turn.truncated for turn in turns) / len(turns)
    paths = [
        [tree.turns[i].text for i in tree.path(leaf)]
        for tree in experience.trees
        for leaf in tree.leaves()
        if leaf not in tree.invalid
    ]
    if paths:
        metrics["train/repeat_rate"] = sum(map(repeat_rate, paths)) / len(paths)
        metrics["train/turns_per_rollout"] = sum(map(len, paths)) / len(paths)
    return metrics


def _by_domain(experience: Experience) -> dict[str, float]:
    """Returns the mean reward over the groups of each domain (environment), as metrics.

    The result is empty if the iteration's groups belong to only one domain.
    """
    means: dict[str, list[float]] = {}
    for tree, rewards in zip(experience.trees, experience.rewards, strict=True):
        paid = [reward for reward in rewards.get("total", ()) if reward == reward]
        if paid and not tree.stopped:
            means.setdefault(domain_of(tree.state), []).append(sum(paid) / len(paid))
    if len(means) < 2:
        return {}
    return {f"train/reward_mean/{domain}": sum(means[domain]) / len(means[domain]) for domain in sorted(means)}


def sampling_metrics(engine: Mapping[str, float], stale: int, stale_turns: float, waited: float) -> dict[str, float]:
    """Returns metrics of how an iteration was sampled: the engine's counts, the staleness and the waiting time.

    Args:
        engine: the engine's report.
        stale: number of training iterations between the oldest policy that sampled and the policy that is trained.
        stale_turns: mean over all turns of the number of training iterations between the policy that sampled the turn
            and the policy that is trained.
        waited: seconds in which the iteration waited for rollouts.
    """
    return {
        **{f"engine/{name}": count for name, count in engine.items()},
        "rollout/staleness": float(stale),
        "rollout/turn_staleness": stale_turns,
        "seconds/waited": waited,
    }
