"""Finds combinations of engine, trainer and rollout settings that cannot work, and says how to correct them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.config.part_conflicts import part_of, value_of


def impossible_execution(cfg: Mapping[str, Any]) -> list[str]:
    """Returns a message for each impossible combination of engine, trainer and rollout settings in ``cfg``."""
    return _served(cfg) + _sharded(cfg) + _overlapping(cfg) + _renewed(cfg) + _frozen(cfg)


def _served(cfg: Mapping[str, Any]) -> list[str]:
    """Reports settings that do not work with ``engine=vllm``: a start adapter, which the vLLM server would ignore; a
    temperature that the server would silently change; and ``engine.in_flight`` in a run in which no rollout could
    change to newer weights.
    """
    if part_of(cfg, "engine") != "VllmEngine":
        return []
    mistakes = []
    if value_of(cfg, "policy", "start"):
        mistakes.append(
            "policy.start: the vLLM server loads only policy.model and would sample from other weights; set engine=tree, or "
            "give a folder with all weights as policy.model"
        )
    if not part_of(cfg, "allocator"):
        return mistakes
    heat = value_of(cfg, "rollout", "sampling", "temperature")
    if isinstance(heat, int | float) and heat and not 0.01 <= heat <= 2:
        mistakes.append(
            "rollout.sampling.temperature: vLLM accepts 0.01 to 2 and would silently change other values; set it in this range, "
            f"got {heat}"
        )
    rank = value_of(cfg, "policy", "lora", "r") or 0
    if value_of(cfg, "engine", "in_flight"):
        reasons = (
            (
                not value_of(cfg, "rollout", "staleness"),
                "with rollout.staleness=0 no rollout runs while weights change",
            ),
            (
                value_of(cfg, "engine", "schedule") == "rounds",
                "rollouts change their weights only with engine.schedule=free",
            ),
            (not rank, "a server cannot hold two sets of full weights, so policy.lora.r must be at least 1"),
            (
                value_of(cfg, "rollout", "turns") == 1,
                "with rollout.turns=1 all requests are sent before weights change",
            ),
            (part_of(cfg, "judge"), "with a judge, the rollouts of two iterations are never sampled together"),
        )
        mistakes += [f"engine.in_flight: {reason}; set engine.in_flight=false" for wrong, reason in reasons if wrong]
    return mistakes


def _sharded(cfg: Mapping[str, Any]) -> list[str]:
    """Reports settings that do not work with sharded weights (``trainer=fsdp``)."""
    if value_of(cfg, "trainer", "strategy", "_target_") != "turnwise.training.sharding.FullySharded":
        return []
    mistakes = []
    inside = part_of(cfg, "engine") in ("TreeEngine", "Lanes")
    if inside and value_of(cfg, "engine", "copy") is False:
        mistakes.append("engine.copy: the trained weights are sharded and cannot be sampled from; set engine.copy=true")
    if inside and value_of(cfg, "trainer", "strategy", "offload"):
        mistakes.append(
            "trainer.strategy.offload: the weight shards are kept on the CPU, and engine=tree would sample there too; "
            "choose engine=vllm, or trainer.strategy.offload=false"
        )
    if value_of(cfg, "callbacks", "gradients"):
        mistakes.append(
            "callbacks.gradients: this callback needs gradients of whole weights, but the weights are sharded; set "
            "callbacks=default, or trainer=ddp"
        )
    return mistakes


def _overlapping(cfg: Mapping[str, Any]) -> list[str]:
    """Reports settings that conflict with ``rollout.staleness``, which samples later iterations during an update."""
    if not value_of(cfg, "rollout", "staleness"):
        return []
    remedy = "set rollout.staleness=0"
    counts = [value_of(cfg, "trainer", key) for key in ("devices", "num_nodes")]
    reasons = (
        (
            any(isinstance(count, int) and count > 1 for count in counts) and part_of(cfg, "engine") != "VllmEngine",
            "several processes would exchange rollouts and gradients at the same time, unless engine=vllm samples for them",
        ),
        (
            part_of(cfg, "predictor"),
            "the predictor must learn from the rollouts of one iteration before those of the next one are allocated",
        ),
        (value_of(cfg, "engine", "copy") is False, "engine.copy=false samples from the weights that are being trained"),
    )
    return [f"rollout.staleness: {reason}; {remedy}" for wrong, reason in reasons if wrong]


def _renewed(cfg: Mapping[str, Any]) -> list[str]:
    """Reports settings that conflict with ``states.refresh``, which samples actions at all states again during training
    and then chooses new states.
    """
    if value_of(cfg, "states", "refresh") is None:
        return []
    reasons = (
        (
            value_of(cfg, "states", "keep") == "all",
            "states.keep=all keeps every turn, so a new profile changes nothing; set states.keep=adv or states.keep=mixed, or",
        ),
        (
            not part_of(cfg, "allocator"),
            "re-profiling needs rewards of sampled rollouts, and an imitation run samples none;",
        ),
        (
            bool(value_of(cfg, "rollout", "staleness")),
            "the engine would still be sampling the next iteration during re-profiling; set rollout.staleness=0, or",
        ),
    )
    return [f"states.refresh: {reason} set states.refresh=null" for wrong, reason in reasons if wrong]


def _frozen(cfg: Mapping[str, Any]) -> list[str]:
    """Reports settings that conflict with ``rollout.frozen``, which samples all groups before the first update."""
    if value_of(cfg, "rollout", "frozen") is None:
        return []
    reasons = (
        (
            part_of(cfg, "allocator") is None,
            "rollout.frozen: allocator is null, so nothing is sampled; set rollout.frozen=null",
        ),
        (
            part_of(cfg, "predictor"),
            "predictor: the predictor learns from each iteration's rollouts, but rollout.frozen samples all groups "
            "before the first update; set predictor=none with allocator=uniform, or rollout.frozen=null",
        ),
        (
            value_of(cfg, "rollout", "staleness"),
            "rollout.staleness: with rollout.frozen nothing is sampled during an update; set rollout.staleness=0",
        ),
        (
            value_of(cfg, "states", "refresh") is not None,
            "states.refresh: the groups of rollout.frozen are sampled before training, so they lack states that are "
            "chosen later; set states.refresh=null, or rollout.frozen=null",
        ),
        (
            value_of(cfg, "advantage", "zero_variance") == "refill",
            "advantage.zero_variance: with rollout.frozen, refill would use up groups of other iterations; set "
            "advantage.zero_variance to drop or keep, or set rollout.frozen=null",
        ),
    )
    return [reason for wrong, reason in reasons if wrong]
