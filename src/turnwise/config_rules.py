"""Combinations of parts that compose but cannot work, each with the way out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_LOCAL_REWARDS = {"Exact", "Functional", "Graded", "ToolCalls"}  # compare one action with the demonstrated one
_GROUP_RULES = {"GroupAdvantage", "Awpo"}
_JUDGED_RULES = {"Awpo"}  # weigh a judge's score against the outcome
_PREDICTED = {"Trace", "Pcl"}  # ask a predictor
_DEMONSTRATED_STATES = {"ExpertTurns", "Pivots"}  # know a demonstrated action


def impossible_combinations(cfg: Mapping[str, Any]) -> list[str]:
    """Mistakes of a resolved configuration that no single part can see."""
    states, reward, loss = _part(cfg, "states"), _part(cfg, "reward"), _part(cfg, "loss")
    turns = _value(cfg, "rollout", "turns")
    mistakes = _seeded(cfg) + _predicted(cfg, turns)
    if reward in _LOCAL_REWARDS and states not in _DEMONSTRATED_STATES:
        mistakes.append(
            f"reward={_short(reward)}: compares with a demonstrated action, which {states} has none of; "
            "choose states=expert_turns, states=pivots or reward=outcome"
        )
    if reward in _LOCAL_REWARDS and turns != 1:
        mistakes.append(f"rollout.turns: reward={_short(reward)} judges one action; set rollout.turns=1, got {turns}")
    if reward == "Outcome" and turns is not None:
        mistakes.append(
            f"rollout.turns: reward=outcome is paid at an episode's end; set rollout.turns=null, got {turns}"
        )
    if turns is not None and (first := _first_look(cfg)) is not None and first >= turns:
        mistakes.append(
            f"gate: it first looks after turn {first}, when all rollouts of rollout.turns={turns} have ended; "
            "set gate=never, or an earlier turn"
        )
    if loss == "Nll":
        mistakes += [
            f"{part}: loss=nll imitates the demonstrated tokens and reads no {part}; set {part}=none, or loss=clipped"
            for part in ("reward", "advantage")
            if _part(cfg, part)
        ]
        if states == "TaskStarts":
            mistakes.append("states=task_starts: loss=nll needs demonstrated actions; choose states=expert_turns")
    elif loss:
        mistakes += [
            f"{part}: loss={_short(loss)} needs one, and it is null; choose one, or method=sft to imitate"
            for part in ("allocator", "reward", "advantage")
            if not _part(cfg, part)
        ]
        if _value(cfg, "rollout", "sampling", "temperature") == 0:
            mistakes.append("rollout.sampling.temperature: greedy samples of a state are all the same; set it above 0")
        for key, off, most in (("top_p", 1, 1), ("top_k", 0, math.inf), ("min_p", 0, 1)):
            value = _value(cfg, "rollout", "sampling", key)
            # Sampling itself refuses what is out of range.
            if isinstance(value, int | float) and 0 < value <= most and value != off:
                mistakes.append(
                    f"rollout.sampling.{key}: the update scores tokens under the whole distribution, so a filter would make "
                    f"its ratios wrong; set it to {off}"
                )
    if _part(cfg, "advantage") in _GROUP_RULES and _value(cfg, "allocator", "group_size") == 1:
        mistakes.append("allocator.group_size: a group of one has no advantage; set at least 2")
    mistakes += (
        _stepping(cfg) + _judging(cfg) + _served(cfg) + _sharded(cfg) + _overlapping(cfg) + _renewed(cfg) + _frozen(cfg)
    )
    if _part(cfg, "advantage") == "Awpo" and _value(cfg, "advantage", "difficulty"):
        tau, at_most_one = _value(cfg, "advantage", "tau_high"), {"Exact", "Functional"}
        pays_one = reward in at_most_one or (reward == "Outcome" and _value(cfg, "reward", "of") == "won")
        if pays_one and isinstance(tau, int | float) and tau > 1:
            mistakes.append(
                f"advantage.tau_high: reward={_short(reward)} is at most 1, so that no group would be too easy; set "
                f"advantage.tau_low=0.2 and advantage.tau_high=0.8, or advantage.difficulty=false; got {tau}"
            )
    if (_value(cfg, "loss", "kl_beta") or 0) > 0 and _value(cfg, "policy", "lora", "r") == 0:
        mistakes.append(
            "loss.kl_beta: the reference policy is the policy with its adapter off, and policy.lora.r is 0; "
            "set loss.kl_beta=0, or train an adapter"
        )
    return mistakes


def _seeded(cfg: Mapping[str, Any]) -> list[str]:
    """numpy and torch take whole numbers from 0 to 2^32 - 1 alike, and would say so in the middle of a run."""
    seed = _value(cfg, "seed")
    inside = not isinstance(seed, int) or 0 <= seed < 2**32
    return [] if inside else [f"seed: set it from 0 to {2**32 - 1}, which every generator of a run takes; got {seed}"]


def _stepping(cfg: Mapping[str, Any]) -> list[str]:
    """What several optimiser steps on one collection need."""
    steps, drawn = _value(cfg, "update", "steps"), _value(cfg, "rollout", "states")
    mistakes = []
    if isinstance(steps, int) and isinstance(drawn, int) and steps > drawn:
        mistakes.append(
            f"update.steps: {steps} steps on {drawn} trees leave some without any; set it to rollout.states={drawn} or less"
        )
    if isinstance(steps, int) and steps > 1 and _value(cfg, "loss", "correction"):
        mistakes.append(
            "loss.correction: its clip is around the policy that learns, so that nothing would hold the second step back; "
            f"set update.steps=1, or loss=clipped, whose clip is around the policy that played; got update.steps={steps}"
        )
    return mistakes


def _served(cfg: Mapping[str, Any]) -> list[str]:
    """What vLLM would change without a word, or could not hold."""
    if _part(cfg, "engine") != "VllmEngine":
        return []
    mistakes = []
    if _value(cfg, "policy", "start"):
        mistakes.append(
            "policy.start: the server holds policy.model alone and would sample from other weights; set engine=tree, or give a "
            "folder with all weights as policy.model"
        )
    if not _part(cfg, "allocator"):
        return mistakes
    heat = _value(cfg, "rollout", "sampling", "temperature")
    if isinstance(heat, int | float) and heat and not 0.01 <= heat <= 2:
        mistakes.append(
            f"rollout.sampling.temperature: engine=vllm takes 0.01 to 2 and would sample another policy; set it there, got {heat}"
        )
    rank = _value(cfg, "policy", "lora", "r") or 0
    held = _value(cfg, "engine", "local", "lora_rank")
    if not _value(cfg, "engine", "urls") and isinstance(held, int) and (held < rank or (held > 0) != (rank > 0)):
        mistakes.append(
            f"engine.local.lora_rank: policy.lora.r={rank} does not fit a server that is started for {held}; set it to {rank}"
        )
    return mistakes


def _sharded(cfg: Mapping[str, Any]) -> list[str]:
    """What cannot be done with weights that are in shards."""
    if _value(cfg, "trainer", "strategy", "_target_") != "turnwise.training.sharding.FullySharded":
        return []
    mistakes = []
    inside = _part(cfg, "engine") in ("TreeEngine", "Lanes")
    if inside and _value(cfg, "engine", "copy") is False:
        mistakes.append(
            "engine.copy: the live weights are in shards, which nobody can sample from; set engine.copy=true"
        )
    if inside and _value(cfg, "trainer", "strategy", "offload"):
        mistakes.append(
            "trainer.strategy.offload: engine=tree would sample beside the shards, on the CPU; choose engine=vllm, or "
            "trainer.strategy.offload=false"
        )
    if _value(cfg, "callbacks", "gradients"):
        mistakes.append(
            "callbacks.gradients: it takes gradients of whole weights, and these are in shards; set callbacks=default, or "
            "trainer=ddp"
        )
    return mistakes


def _overlapping(cfg: Mapping[str, Any]) -> list[str]:
    """What must not change, or be used, while the next iteration is being collected."""
    if not _value(cfg, "rollout", "staleness"):
        return []
    way_out = "set rollout.staleness=0"
    counts = [_value(cfg, "trainer", key) for key in ("devices", "num_nodes")]
    reasons = (
        (
            any(isinstance(count, int) and count > 1 for count in counts),
            "the collections of several processes talk to each other, and so do their gradients meanwhile",
        ),
        (_part(cfg, "predictor"), "the predictor learns from a collection before the next one is allocated"),
        (_value(cfg, "engine", "copy") is False, "engine.copy=false samples from the weights that are being trained"),
        (
            _value(cfg, "trainer", "strategy", "_target_") == "turnwise.training.sharding.FullySharded",
            "the weights are in shards, and the collection would wait for them beside the update",
        ),
    )
    return [f"rollout.staleness: {reason}; {way_out}" for wrong, reason in reasons if wrong]


def _renewed(cfg: Mapping[str, Any]) -> list[str]:
    """What a second choice of states needs: a rule that may choose otherwise, rewards to measure, and the engine for itself."""
    if _value(cfg, "states", "refresh") is None:
        return []
    reasons = (
        (
            _value(cfg, "states", "keep") == "all",
            "states.keep=all keeps every turn whatever a new profile says; set states.keep=adv or states.keep=mixed, or",
        ),
        (
            not _part(cfg, "allocator"),
            "it is measured by rewards of what is sampled, and a run that imitates samples nothing;",
        ),
        (
            bool(_value(cfg, "rollout", "staleness")),
            "the engine would be collecting the next iteration when the policy is to be profiled; set rollout.staleness=0, or",
        ),
    )
    return [f"states.refresh: {reason} set states.refresh=null" for wrong, reason in reasons if wrong]


def _frozen(cfg: Mapping[str, Any]) -> list[str]:
    """What groups that are played once, before the first update, cannot serve."""
    if _value(cfg, "rollout", "frozen") is None:
        return []
    reasons = (
        (
            _part(cfg, "allocator") is None,
            "rollout.frozen: allocator is null, and nothing is played; set rollout.frozen=null",
        ),
        (
            _part(cfg, "predictor"),
            "predictor: it learns from each collection what the next one is worth, and the buffer is played before any; set "
            "predictor=none with allocator=uniform, or rollout.frozen=null",
        ),
        (
            _value(cfg, "rollout", "staleness"),
            "rollout.staleness: with rollout.frozen there is nothing to play while an update is under way; set "
            "rollout.staleness=0",
        ),
        (
            _value(cfg, "states", "refresh") is not None,
            "states.refresh: the buffer's groups are not those of states that are chosen anew; set states.refresh=null, or "
            "rollout.frozen=null",
        ),
        (
            _value(cfg, "advantage", "zero_variance") == "refill",
            "advantage.zero_variance: a refill would take groups of the buffer that other iterations draw; set drop or keep, or "
            "rollout.frozen=null",
        ),
    )
    return [reason for wrong, reason in reasons if wrong]


def _judging(cfg: Mapping[str, Any]) -> list[str]:
    """Who reads a judge needs one; a judge needs a reader, and single replies with a demonstration to hold them against."""
    judge, advantage, states = _part(cfg, "judge"), _part(cfg, "advantage"), _part(cfg, "states")
    if judge is None:
        if advantage not in _JUDGED_RULES:
            return []
        return [
            "judge: advantage=awpo and advantage=mixed weigh a judge's score of the reasoning, and there is none; choose "
            "judge=offline or judge=endpoint, or set advantage=group"
        ]
    if advantage not in _JUDGED_RULES:
        return [
            f"judge: {judge} would be asked about every rollout, and advantage={_short(advantage)} never reads its score; set "
            "judge=none, or choose advantage=awpo or advantage=mixed"
        ]
    if states not in _DEMONSTRATED_STATES or _value(cfg, "rollout", "turns") != 1:
        return [
            "judge: it grades one reply against the demonstrated one; choose states=expert_turns or states=pivots with "
            "rollout.turns=1, or set judge=none and advantage=group"
        ]
    return []


def _predicted(cfg: Mapping[str, Any], turns: Any) -> list[str]:
    """Of parts that ask a predictor, and of allocators that spend one budget over all states."""
    allocator = _part(cfg, "allocator")
    mistakes = []
    if allocator in _PREDICTED and not _part(cfg, "predictor"):
        mistakes.append(
            f"allocator={_short(allocator)}: asks a predictor where outcomes are mixed, and predictor is null; "
            "set predictor=tiny, or choose allocator=uniform"
        )
    if _part(cfg, "gate") == "Predicted" and not _part(cfg, "predictor"):
        mistakes.append(
            "gate=predicted: asks a predictor whether a group will be mixed, and predictor is null; set predictor=tiny, or "
            "choose another gate"
        )
    if allocator in _PREDICTED and _part(cfg, "advantage") and _value(cfg, "advantage", "zero_variance") == "refill":
        mistakes.append(
            f"advantage.zero_variance: allocator={_short(allocator)} has spent its budget when a refill would ask for more "
            "states; set drop or keep"
        )
    branches = {"Trace": "expansion", "TreePO": "branches"}.get(allocator or "")
    if branches and turns == 1 and (_value(cfg, "allocator", branches) or 0) > 0:
        mistakes.append(
            f"allocator.{branches}: with rollout.turns=1 no rollout has a turn to branch at; "
            f"set allocator.{branches}=0, or rollout.turns=null"
        )
    states, prompts = _value(cfg, "rollout", "states"), _value(cfg, "allocator", "prompts")
    if allocator == "Pcl" and isinstance(prompts, int) and isinstance(states, int) and prompts > states:
        mistakes.append(
            f"allocator.prompts: {prompts} of rollout.states={states} candidates cannot be chosen; "
            f"set rollout.states to {2 * prompts}, twice as many, as in TRACE's experiments"
        )
    most = _value(cfg, "predictor", "reward_max")
    if _part(cfg, "reward") == "Graded" and isinstance(most, int | float) and most < 2:
        mistakes.append(f"predictor.reward_max: reward=graded pays up to 2; set predictor.reward_max=2, got {most}")
    return mistakes


def _part(cfg: Mapping[str, Any], name: str) -> str | None:
    node = cfg.get(name)
    return str(node["_target_"]).rpartition(".")[2] if isinstance(node, Mapping) and "_target_" in node else None


def _first_look(cfg: Mapping[str, Any]) -> int | None:
    """The first turn after which the gate may stop a tree; None where it never does."""
    steps = _value(cfg, "gate", "steps")
    step = min(steps, default=None) if isinstance(steps, Sequence) else _value(cfg, "gate", "k")
    return step if isinstance(step, int) else None


def _value(cfg: Mapping[str, Any], *keys: str) -> Any:
    node: Any = cfg
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _short(part: str | None) -> str:
    return (part or "null").lower()
