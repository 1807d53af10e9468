"""Defines the labels of metrics: paths in ``result.json`` and keys of ``metrics.jsonl`` (docs/metrics.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable

SUCCESS, ACCEPTED = "held-out success", "accepted replies in held-out dialogues"
RESULT = {
    "in_domain.base": "held-out success before training, %",
    "in_domain.after": "held-out success after training, %",
    "in_domain.delta": "change of held-out success, points",
    "in_domain.greedy.after": "held-out success after training, greedy, %",
    "in_domain.greedy.delta": "change of held-out success, greedy, points",
    "in_domain.subset_mean.after": "held-out success after training, mean over subsets, %",
    "in_domain.subset_mean.delta": "change of held-out success, mean over subsets, points",
    "ood.mean_change": "out-of-domain change, points",
    "ood.after": "out-of-domain score after training, mean over suites, %",
    "rollout_turns": "turns played for training",
    "rollout_tokens": "tokens sampled for training",
    "sampled_turns": "turns sampled, profiles included",
    "sampled_cpu_seconds": "CPU seconds of training, profiles included",
    "profile_turns": "turns of profiles",
    "cpu_seconds": "CPU seconds of training",
    "seconds.rollouts": "seconds of rollouts",
    "seconds.updates": "seconds of updates",
}
LOGGED = {
    "train/reward_mean": "mean reward",
    "train/reward_std": "spread of rewards in a group",
    "train/kl_ref": "KL to the reference",
    "train/kl_sampler": "KL of trainer and sampler",
    "train/entropy": "entropy",
    "train/repeat_rate": "repeated actions",
    "train/grad_norm": "gradient norm",
    "train/clip_fraction": "clipped tokens",
    "train/effective_groups": "groups with signal",
    "train/loss": "loss",
    "train/nll": "negative log-likelihood",
    "rollout/turns": "turns played so far",
    "rollout/tokens": "tokens sampled so far",
    "rollout/tokens_per_s": "tokens sampled a second",
    "rollout/trajectories": "trajectories played so far",
    "cpu/iteration": "CPU seconds of an iteration",
    "eval/repeat_rate": "repeated actions in evaluations",
}
_HOW = {
    "late": "later half",
    "spread": "standard deviation",
    "last": "last iteration",
    "sum": "all iterations together",
}
_PART = re.compile(r"in_domain\.(?:(greedy|sampled)\.)?by_(split|subset)\.([\w-]+)\.(after|delta)$")
_SUITE = re.compile(r"ood\.(base|after)\.(\w+)$")


def words(metric: str, dialogues: bool = False) -> str:
    """Returns the label of a metric, or the metric itself if it has no label.

    Args:
        dialogues: whether the runs are evaluated on held-out dialogues instead of tasks of an environment.
    """
    if dialogues:
        return words(metric).replace(SUCCESS, ACCEPTED)
    top, sign, below = metric.partition(" / ")
    if sign:
        return f"{words(top)}, per {words(below)}"
    how, _, key = metric.rpartition(" ")
    if how in _HOW:
        return f"{words(key)}, {_HOW[how]}" if words(key) != key else metric
    if found := _PART.match(metric):
        mode, _, name, when = found.groups()
        what = "held-out success after training, %" if when == "after" else "change of held-out success, points"
        head, _, unit = what.rpartition(", ")
        return f"{head}, {name}{f', {mode}' if mode else ''}, {unit}"
    if found := _SUITE.match(metric):
        return f"{found[2]} {'before' if found[1] == 'base' else 'after'} training, %"
    return RESULT.get(metric) or LOGGED.get(metric, metric)


def success_keys(logged: Iterable[str]) -> dict[str, str]:
    """Returns split -> key of held-out success in ``metrics.jsonl``; greedy keys only if there are no sampled ones."""
    names = sorted(logged)
    for ending in ("success", "success_greedy"):
        keys = [key for key in names if key.startswith("eval/") and key.endswith(f"/{ending}")]
        if keys:
            return {key.split("/")[1]: key for key in keys}
    return {}
