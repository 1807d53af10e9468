"""Finds parts of a configuration (states, reward, loss and others) that cannot work together, with the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# rewards that compare one action with the demonstrated one
_LOCAL_REWARDS = {"Exact", "Functional", "Graded", "ToolCalls"}
_GROUP_RULES = {"GroupAdvantage", "Awpo", "GiGPO", "MTGRPO", "TurnCredit", "MonteCarlo"}
_JUDGED_RULES = {"Awpo"}  # advantage rules that combine a judge's score with the outcome reward
_PREDICTED = {"Trace", "Pcl"}  # allocators that need a predictor
_OPTIONS = {"ExpertTurns": "expert_turns", "Pivots": "pivots"}
_DEMONSTRATED_STATES = set(_OPTIONS)  # states that have a demonstrated action


def impossible_combinations(cfg: Mapping[str, Any]) -> list[str]:
    """Returns a message for each combination of parts of the resolved configuration that cannot work together."""
    states, reward, loss = part_of(cfg, "states"), part_of(cfg, "reward"), part_of(cfg, "loss")
    turns = value_of(cfg, "rollout", "turns")
    mistakes = _predicted(cfg, turns)
    if reward in _LOCAL_REWARDS and states not in _DEMONSTRATED_STATES:
        mistakes.append(
            f"reward={_short(reward)}: this reward compares with a demonstrated action, but {states} states have none; "
            "choose states=expert_turns, states=pivots or reward=outcome"
        )
    if reward in _LOCAL_REWARDS and turns != 1:
        mistakes.append(
            f"rollout.turns: reward={_short(reward)} judges a single action; set rollout.turns=1, got {turns}"
        )
    if reward == "Outcome" and turns is not None:
        mistakes.append(
            f"rollout.turns: reward=outcome is paid at the end of an episode, which rollouts of {turns} turns may not "
            "reach; set rollout.turns=null"
        )
    if turns is not None and (first := _first_decision(cfg)) is not None and first >= turns:
        mistakes.append(
            f"gate: the gate first decides after turn {first}, when all rollouts of rollout.turns={turns} have ended; "
            "set gate=never, or let the gate decide after an earlier turn"
        )
    if loss == "Nll":
        mistakes += [
            f"{part}: loss=nll imitates the demonstrated tokens and uses no {part}; set {part}=none, or loss=clipped"
            for part in ("reward", "advantage")
            if part_of(cfg, part)
        ]
        if states == "TaskStarts":
            mistakes.append("states=task_starts: loss=nll needs demonstrated actions; choose states=expert_turns")
    elif loss:
        mistakes += [
            f"{part}: loss={_short(loss)} needs this part, but {part} is null; choose one, or method=sft to imitate"
            for part in ("allocator", "reward", "advantage")
            if not part_of(cfg, part)
        ]
        if value_of(cfg, "rollout", "sampling", "temperature") == 0:
            mistakes.append(
                "rollout.sampling.temperature: at temperature 0 all samples of a state are equal; set it above 0"
            )
        for key, off, most in (("top_p", 1, 1), ("top_k", 0, math.inf), ("min_p", 0, 1)):
            value = value_of(cfg, "rollout", "sampling", key)
            # The sampling settings themselves refuse values that are out of range.
            if isinstance(value, int | float) and 0 < value <= most and value != off:
                mistakes.append(
                    f"rollout.sampling.{key}: the update scores tokens under the unfiltered distribution, so its ratios would "
                    f"be wrong; set it to {off}"
                )
    if part_of(cfg, "advantage") in _GROUP_RULES and value_of(cfg, "allocator", "group_size") == 1:
        mistakes.append("allocator.group_size: a group of one rollout has no group advantage; set it to at least 2")
    mistakes += _stepping(cfg) + _judging(cfg)
    if part_of(cfg, "advantage") == "Awpo" and value_of(cfg, "advantage", "difficulty"):
        tau, at_most_one = value_of(cfg, "advantage", "tau_high"), {"Exact", "Functional"}
        pays_one = reward in at_most_one or (reward == "Outcome" and value_of(cfg, "reward", "of") == "won")
        if pays_one and isinstance(tau, int | float) and tau > 1:
            mistakes.append(
                f"advantage.tau_high: reward={_short(reward)} is at most 1, so no group would count as too easy; set "
                f"advantage.tau_low=0.2 and advantage.tau_high=0.8, or advantage.difficulty=false; got {tau}"
            )
    if (value_of(cfg, "loss", "kl_beta") or 0) > 0 and value_of(cfg, "policy", "lora", "r") == 0:
        mistakes.append(
            "loss.kl_beta: the reference policy is the policy without its adapter, but policy.lora.r is 0; "
            "set loss.kl_beta=0, or train an adapter"
        )
    return mistakes


def forking_parts(cfg: Mapping[str, Any]) -> list[str]:
    """Returns the settings that make rollouts start in the middle of an episode, each in the form ``states=pivots``.
    With these settings, the environment must be able to reach that point of the episode.
    """
    allocator, states = part_of(cfg, "allocator"), part_of(cfg, "states")
    if allocator is None:  # no rollouts are sampled
        return []
    named = [f"states={_OPTIONS[states]}"] if states in _OPTIONS else []
    return named + [f"allocator={_short(allocator)}"] * bool(_branching(cfg))


def part_of(cfg: Mapping[str, Any], name: str) -> str | None:
    """Returns the class name of the configuration's part ``name``, or None if the configuration lacks the part."""
    node = cfg.get(name)
    return str(node["_target_"]).rpartition(".")[2] if isinstance(node, Mapping) and "_target_" in node else None


def value_of(cfg: Mapping[str, Any], *keys: str) -> Any:
    """Returns the value under the nested ``keys`` of a configuration, or None if one of the keys is missing."""
    node: Any = cfg
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def _stepping(cfg: Mapping[str, Any]) -> list[str]:
    """Reports ``update.steps`` if an update has more optimiser steps than there are rollout trees in its batch."""
    steps, drawn = value_of(cfg, "update", "steps"), value_of(cfg, "rollout", "states")
    if not (isinstance(steps, int) and isinstance(drawn, int) and steps > drawn > 0):  # another check reports 0 states
        return []
    return [
        f"update.steps: {steps} optimiser steps need at least {steps} rollout trees in each iteration, but there are "
        f"only rollout.states={drawn}; set update.steps to at most {drawn}"
    ]


def _judging(cfg: Mapping[str, Any]) -> list[str]:
    """Reports a mistake if the advantage rule needs a judge but the run has none, if the rule does not use the judge's
    score, or if there is no demonstrated reply with which the judge can compare.
    """
    judge, advantage, states = part_of(cfg, "judge"), part_of(cfg, "advantage"), part_of(cfg, "states")
    if judge is None:
        if advantage not in _JUDGED_RULES:
            return []
        return [
            "judge: advantage=awpo and advantage=mixed weigh a judge's score of the reasoning, but judge is null; choose "
            "judge=offline or judge=endpoint, or set advantage=group"
        ]
    if advantage not in _JUDGED_RULES:
        return [
            f"judge: {judge} would score every rollout, but advantage={_short(advantage)} never uses the scores; set "
            "judge=none, or choose advantage=awpo or advantage=mixed"
        ]
    if states not in _DEMONSTRATED_STATES or value_of(cfg, "rollout", "turns") != 1:
        return [
            "judge: a judge grades one reply against the demonstrated reply; choose states=expert_turns or "
            "states=pivots with rollout.turns=1, or set judge=none and advantage=group"
        ]
    return []


def _predicted(cfg: Mapping[str, Any], turns: Any) -> list[str]:
    """Reports conflicts of allocators and gates with the success predictor, and of branches with other settings."""
    allocator = part_of(cfg, "allocator")
    mistakes = []
    if allocator in _PREDICTED and not part_of(cfg, "predictor"):
        mistakes.append(
            f"allocator={_short(allocator)}: this allocator needs a predictor of success, but predictor is null; "
            "set predictor=tiny, or choose allocator=uniform"
        )
    if part_of(cfg, "gate") == "Predicted" and not part_of(cfg, "predictor"):
        mistakes.append(
            "gate=predicted: this gate needs a predictor of success, but predictor is null; set predictor=tiny, or "
            "choose another gate"
        )
    if (
        allocator in _PREDICTED
        and part_of(cfg, "advantage")
        and value_of(cfg, "advantage", "zero_variance") == "refill"
    ):
        mistakes.append(
            f"advantage.zero_variance: allocator={_short(allocator)} has spent its whole budget before a refill; set "
            "advantage.zero_variance to drop or keep"
        )
    if turns == 1 and (branches := _branching(cfg)):
        mistakes.append(
            f"allocator.{branches}: with rollout.turns=1 no rollout has a later turn to branch at; "
            f"set allocator.{branches}=0, or rollout.turns=null"
        )
    states, prompts = value_of(cfg, "rollout", "states"), value_of(cfg, "allocator", "prompts")
    if allocator == "Pcl" and isinstance(prompts, int) and isinstance(states, int) and prompts > states:
        mistakes.append(
            f"allocator.prompts: {prompts} prompts cannot be chosen from rollout.states={states} candidates; "
            f"set rollout.states to {2 * prompts}, twice as many, as in TRACE's experiments"
        )
    most = value_of(cfg, "predictor", "reward_max")
    if part_of(cfg, "reward") == "Graded" and isinstance(most, int | float) and most < 2:
        mistakes.append(f"predictor.reward_max: reward=graded can be up to 2; set predictor.reward_max=2, got {most}")
    return mistakes


def _branching(cfg: Mapping[str, Any]) -> str | None:
    """Returns the key under ``allocator`` that sets the number of branches at later turns, or None without branches."""
    key = {"Trace": "expansion", "TreePO": "branches"}.get(part_of(cfg, "allocator") or "")
    return key if key and (value_of(cfg, "allocator", key) or 0) > 0 else None


def _first_decision(cfg: Mapping[str, Any]) -> int | None:
    """Returns the number of turns after which the gate makes its first decision, or None if it makes no decision."""
    steps = value_of(cfg, "gate", "steps")
    step = min(steps, default=None) if isinstance(steps, Sequence) else value_of(cfg, "gate", "k")
    return step if isinstance(step, int) else None


def _short(part: str | None) -> str:
    return (part or "null").lower()
