"""Computes metrics of one iteration, from its groups of rollouts and from the engine's report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from turnwise.evaluation.suites import repeat_rate
from turnwise.rollouts.collect import Experience, Played
from turnwise.training.verdict_counts import domain_of


def totals_of(experience: Experience) -> list[list[float]]:
    """Returns one list for each group, with the total rewards of the group's rollouts. Rollouts whose environment
    failed are left out. Groups that have only failed rollouts, and groups that a gate stopped, are left out too.
    """
    return _totals(zip(experience.trees, experience.rewards, strict=True))


def _totals(groups: Iterable[Played]) -> list[list[float]]:
    played = [rewards for tree, rewards in groups if not tree.stopped]
    totals = [[r for r in rewards["total"] if r == r] for rewards in played if "total" in rewards]
    return [total for total in totals if total]


def reward_metrics(experience: Experience, most: float | None = None) -> dict[str, float]:
    """Returns metrics of the groups of one iteration. A group is effective if the rewards of its rollouts differ.

    Means of rewards leave out the groups that a gate stopped, because their episodes are incomplete. ``most`` is the
    greatest reward that a rollout can earn, or None if this reward is unknown.
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
    paths = [[tree.turns[i].text for i in tree.path(leaf)] for tree in experience.trees for leaf in tree.valid_leaves()]
    if paths:
        metrics["train/repeat_rate"] = sum(map(repeat_rate, paths)) / len(paths)
        metrics["train/turns_per_rollout"] = sum(map(len, paths)) / len(paths)
    return metrics


def _by_domain(experience: Experience) -> dict[str, float]:
    """Returns as metrics the mean reward of the groups of each domain (an environment, or all dialogues). The result is
    empty if there is only one domain.
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
    """Returns metrics of the sampling of an iteration.

    Args:
        engine: the engine's report.
        stale: number of training iterations by which the oldest sampling policy is behind the trained policy.
        stale_turns: mean over all turns of the number of training iterations by which the policy that sampled the turn
            is behind the trained policy.
        waited: seconds in which the iteration waited for rollouts.
    """
    return {
        **{f"engine/{name}": count for name, count in engine.items()},
        "rollout/staleness": float(stale),
        "rollout/turn_staleness": stale_turns,
        "seconds/waited": waited,
    }
