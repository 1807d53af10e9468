"""Compares the engine's log-probs of stale rollouts with those of the policy that sampled them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from turnwise.config.settings import UpdateSettings
from turnwise.rollouts.pack import pack
from turnwise.training.earlier_policies import become
from turnwise.training.module import PolicyModule
from turnwise.types import Credit, RolloutTree


def stale_mismatch(
    module: PolicyModule, sampler: dict[str, Any] | None, trees: Sequence[RolloutTree], settings: UpdateSettings
) -> dict[str, float]:
    """Returns the mean and the largest absolute difference between log-probs of the engine and of the trainer with the
    weights of the policy that sampled, in nats, or nothing if the rollouts are not stale or that policy is not stored.

    The trainer computes the log-probs of one micro-batch of trees, which begins with another tree in each iteration.
    Turns that a newer policy sampled (``engine.in_flight``) are left out. All processes must call this function with
    the same trees.

    Args:
        sampler: the stored policy that sampled the trees (``training.earlier_policies.remembered``), or None.
    """
    if not module.staleness or sampler is None or not trees:
        return {}
    sampled_by, first = sampler["version"], module.version % len(trees)
    chosen: list[RolloutTree] = []
    credits: list[Credit] = []
    tokens = 0
    for tree in [*trees[first:], *trees[:first]]:
        weight = [float(turn.version == sampled_by) for turn in tree.turns]
        if tree.stopped or not any(weight):
            continue
        tokens += len(tree.state.ids) + sum(len(turn.action_ids) + len(turn.observation_ids) for turn in tree.turns)
        if chosen and tokens > settings.batch_tokens:
            break
        chosen.append(tree)
        credits.append(Credit([0.0] * len(weight), weight))
    update = pack(chosen, credits, settings.row_tokens, settings.batch_tokens)
    if not update.batches:
        return {}
    with become(module, sampler):
        difference_K = module.differences(replace(update, batches=update.batches[:1]))
    return {"mismatch_sampler_mean": float(difference_K.mean()), "mismatch_sampler_max": float(difference_K.max())}
