"""Combinations of the engine, the trainer and the collection that Hydra composes and that cannot work, each with the way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.config.rules import part_of, value_of


def impossible_execution(cfg: Mapping[str, Any]) -> list[str]:
    """Mistakes of a resolved configuration: an engine, a trainer and a collection that cannot work together."""
    return _served(cfg) + _sharded(cfg) + _overlapping(cfg) + _renewed(cfg) + _frozen(cfg)


def _served(cfg: Mapping[str, Any]) -> list[str]:
    """Settings that vLLM would change silently, and adapters that do not fit its servers."""
    if part_of(cfg, "engine") != "VllmEngine":
        return []
    mistakes = []
    if value_of(cfg, "policy", "start"):
        mistakes.append(
            "policy.start: the server holds policy.model alone and would sample from other weights; set engine=tree, or give a "
            "folder with all weights as policy.model"
        )
    if not part_of(cfg, "allocator"):
        return mistakes
    heat = value_of(cfg, "rollout", "sampling", "temperature")
    if isinstance(heat, int | float) and heat and not 0.01 <= heat <= 2:
        mistakes.append(
            f"rollout.sampling.temperature: engine=vllm takes 0.01 to 2 and would sample another policy; set it there, got {heat}"
        )
    rank = value_of(cfg, "policy", "lora", "r") or 0
    held = value_of(cfg, "engine", "local", "lora_rank")
    if not value_of(cfg, "engine", "urls") and isinstance(held, int) and (held < rank or (held > 0) != (rank > 0)):
        mistakes.append(
            f"engine.local.lora_rank: policy.lora.r={rank} does not fit a server that is started for {held}; set it to {rank}"
        )
    return mistakes


def _sharded(cfg: Mapping[str, Any]) -> list[str]:
    """Settings that need whole weights, where the weights are in shards."""
    if value_of(cfg, "trainer", "strategy", "_target_") != "turnwise.training.sharding.FullySharded":
        return []
    mistakes = []
    inside = part_of(cfg, "engine") in ("TreeEngine", "Lanes")
    if inside and value_of(cfg, "engine", "copy") is False:
        mistakes.append(
            "engine.copy: the live weights are in shards, which nobody can sample from; set engine.copy=true"
        )
    if inside and value_of(cfg, "trainer", "strategy", "offload"):
        mistakes.append(
            "trainer.strategy.offload: engine=tree would sample beside the shards, on the CPU; choose engine=vllm, or "
            "trainer.strategy.offload=false"
        )
    if value_of(cfg, "callbacks", "gradients"):
        mistakes.append(
            "callbacks.gradients: it takes gradients of whole weights, and these are in shards; set callbacks=default, or "
            "trainer=ddp"
        )
    return mistakes


def _overlapping(cfg: Mapping[str, Any]) -> list[str]:
    """Settings that would change something while the next iteration is collected (``rollout.staleness``)."""
    if not value_of(cfg, "rollout", "staleness"):
        return []
    way_out = "set rollout.staleness=0"
    counts = [value_of(cfg, "trainer", key) for key in ("devices", "num_nodes")]
    reasons = (
        (
            any(isinstance(count, int) and count > 1 for count in counts),
            "the collections of several processes talk to each other, and so do their gradients meanwhile",
        ),
        (part_of(cfg, "predictor"), "the predictor learns from a collection before the next one is allocated"),
        (value_of(cfg, "engine", "copy") is False, "engine.copy=false samples from the weights that are being trained"),
        (
            value_of(cfg, "trainer", "strategy", "_target_") == "turnwise.training.sharding.FullySharded",
            "the weights are in shards, and the collection would wait for them beside the update",
        ),
    )
    return [f"rollout.staleness: {reason}; {way_out}" for wrong, reason in reasons if wrong]


def _renewed(cfg: Mapping[str, Any]) -> list[str]:
    """A second choice of states (``states.refresh``) needs a rule that can choose other states, rewards, and a free engine."""
    if value_of(cfg, "states", "refresh") is None:
        return []
    reasons = (
        (
            value_of(cfg, "states", "keep") == "all",
            "states.keep=all keeps every turn whatever a new profile says; set states.keep=adv or states.keep=mixed, or",
        ),
        (
            not part_of(cfg, "allocator"),
            "it is measured by rewards of what is sampled, and a run that imitates samples nothing;",
        ),
        (
            bool(value_of(cfg, "rollout", "staleness")),
            "the engine would be collecting the next iteration when the policy is to be profiled; set rollout.staleness=0, or",
        ),
    )
    return [f"states.refresh: {reason} set states.refresh=null" for wrong, reason in reasons if wrong]


def _frozen(cfg: Mapping[str, Any]) -> list[str]:
    """Parts that cannot use groups which are played once, before the first update (``rollout.frozen``)."""
    if value_of(cfg, "rollout", "frozen") is None:
        return []
    reasons = (
        (
            part_of(cfg, "allocator") is None,
            "rollout.frozen: allocator is null, and nothing is played; set rollout.frozen=null",
        ),
        (
            part_of(cfg, "predictor"),
            "predictor: it learns from each collection what the next one is worth, and the buffer is played before any; set "
            "predictor=none with allocator=uniform, or rollout.frozen=null",
        ),
        (
            value_of(cfg, "rollout", "staleness"),
            "rollout.staleness: with rollout.frozen there is nothing to play while an update is under way; set "
            "rollout.staleness=0",
        ),
        (
            value_of(cfg, "states", "refresh") is not None,
            "states.refresh: the buffer's groups are not those of states that are chosen anew; set states.refresh=null, or "
            "rollout.frozen=null",
        ),
        (
            value_of(cfg, "advantage", "zero_variance") == "refill",
            "advantage.zero_variance: a refill would take groups of the buffer that other iterations draw; set drop or keep, or "
            "rollout.frozen=null",
        ),
    )
    return [reason for wrong, reason in reasons if wrong]
