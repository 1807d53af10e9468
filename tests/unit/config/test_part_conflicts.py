from __future__ import annotations

from pathlib import Path

import pytest
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.conflicts import impossible_combinations
from turnwise.config.schema import ConfigError, compose_config

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["method=sft", "seed=-1"], ["seed"]),
        (["method=sft", f"seed={2**32}"], ["seed"]),
        (["method=local", "reward=outcome"], ["rollout.turns"]),
        (["method=grpo", "reward=exact"], ["reward=exact", "rollout.turns"]),
        (["method=pivotrl", "states=task_starts"], ["reward=functional"]),
        (["method=pivotrl", "rollout.turns=null"], ["rollout.turns"]),
        (["method=grpo", "advantage=none"], ["advantage"]),
        (["method=grpo", "allocator=none", "reward=none"], ["allocator", "reward"]),
        (["method=sft", "states=task_starts"], ["states=task_starts"]),
        (["method=sft", "reward=outcome"], ["reward"]),
        (["method=grpo", "allocator.group_size=1"], ["allocator.group_size"]),
        (["method=pivotrl", "policy.lora.r=0"], ["loss.kl_beta"]),
        (["method=toolrl", "states=task_starts", "rollout.turns=null"], ["reward=graded", "rollout.turns"]),
        (["method=awpo", "allocator.group_size=1"], ["allocator.group_size"]),
        (["method=pivotrl", "advantage=awpo", "judge=offline"], ["advantage.tau_high"]),
        (["method=grpo", "advantage=awpo"], ["judge", "advantage.tau_high"]),
        (["method=awpo", "judge=none"], ["judge"]),
        (["method=mixed", "judge=none"], ["judge"]),
        (["method=toolrl", "judge=offline"], ["judge"]),
        (["method=sft", "judge=endpoint"], ["judge"]),
        (["method=grpo", "reward.of=return", "advantage=awpo", "judge=offline"], ["judge"]),
        (
            ["trainer=fsdp", "engine.copy=false", "trainer.strategy.offload=true"],
            ["engine.copy", "trainer.strategy.offload"],
        ),
        (["trainer=fsdp", "callbacks=gradients"], ["callbacks.gradients"]),
        (["method=grpo", "rollout.staleness=1", "trainer.devices=2"], ["rollout.staleness"]),
        (["method=trace", "rollout.staleness=1"], ["rollout.staleness"]),
        (["method=grpo", "rollout.staleness=1", "engine.copy=false"], ["rollout.staleness"]),
        (["method=grpo", "rollout.staleness=1", "trainer=fsdp"], ["rollout.staleness"]),
        (["method=grpo", "engine=vllm", "engine.in_flight=true"], ["engine.in_flight"]),
        (
            ["method=awpo", "engine=vllm", "engine.in_flight=true", "engine.schedule=rounds", "rollout.staleness=1"],
            ["engine.in_flight"] * 3,
        ),
        (
            [
                "method=grpo",
                "engine=vllm",
                "engine.in_flight=true",
                "rollout.staleness=1",
                "policy.lora.r=0",
                "loss.kl_beta=0",
            ],
            ["engine.in_flight"],
        ),
        (["method=sft", "rollout.frozen=64"], ["rollout.frozen"]),
        (["method=trace", "rollout.frozen=256"], ["predictor"]),
        (["method=grpo", "rollout.frozen=64", "rollout.staleness=1"], ["rollout.staleness"]),
        (["method=dapo", "rollout.frozen=64"], ["advantage.zero_variance"]),
        (["method=pivotrl", "states.refresh=0.8", "rollout.frozen=256"], ["states.refresh"]),
        (["experiment=composed/trace+gate", "reward.of=return", "advantage=awpo", "judge=offline"], ["judge"]),
        (["experiment=composed/pivotrl+trace", "gate=divergence"], ["gate"]),
        (["method=pivotrl", "states.refresh=0.5", "states.keep=all"], ["states.refresh"]),
        (["method=pivotrl", "states.refresh=0.5", "rollout.staleness=1"], ["states.refresh"]),
        (["method=sft", "states=pivots", "states.refresh=0.5"], ["states.refresh"]),
        (["method=grpo", "rollout.sampling.temperature=0"], ["rollout.sampling.temperature"]),
        (["method=trace", "predictor=none"], ["allocator=trace"]),
        (["method=grpo", "rollout.states=4", "update.steps=5"], ["update.steps"]),
        (["method=grpo", "allocator=pcl", "rollout.states=128"], ["allocator=pcl"]),
        (["method=grpo", "gate=predicted"], ["gate=predicted"]),
        (["method=grpo", "allocator=pcl", "predictor=tiny"], ["allocator.prompts"]),
        (["method=trace", "advantage.zero_variance=refill"], ["advantage.zero_variance"]),
        (["method=toolrl", "predictor=tiny"], ["predictor.reward_max"]),
        (["method=pivotrl", "allocator=treepo"], ["allocator.branches"]),
        (["method=pivotrl", "allocator=trace", "predictor=tiny"], ["allocator.expansion"]),
        (["method=grpo", "engine=vllm", "rollout.sampling.temperature=2.5"], ["rollout.sampling.temperature"]),
        (["method=grpo", "engine=vllm", "policy.start=outputs/first"], ["policy.start"]),
        (["method=sft", "engine=vllm", "policy.start=outputs/first"], ["policy.start"]),
        (["method=grpo", "engine=vllm", "rollout.sampling.temperature=0.005"], ["rollout.sampling.temperature"]),
        (["method=grpo", "engine=vllm", "rollout.sampling.top_p=0.9"], ["rollout.sampling.top_p"]),
        (["method=grpo", "engine=vllm", "engine.local.lora_rank=8"], ["engine.local.lora_rank"]),
        (["method=grpo", "engine=vllm", "policy.lora.r=0", "engine.local.lora_rank=8"], ["engine.local.lora_rank"]),
    ],
)
def test_parts_that_exclude_each_other_are_refused_with_the_way_out(overrides: list[str], keys: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(compose_config(overrides, CONF, read=READ))
    assert [mistake.split(":")[0] for mistake in caught.value.mistakes] == keys
    for mistake in caught.value.mistakes:
        assert any(remedy in mistake for remedy in ("choose", "set "))


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=pivotrl", "policy.lora.r=0", "loss.kl_beta=0"],
        ["method=pivotrl", "states=expert_turns", "reward=exact"],
        ["method=grpo", "reward.of=return"],
        ["method=grpo", "rollout.states=4", "update.steps=4"],
        ["method=sft", "update.steps=2"],
        ["method=grpo", "rollout.staleness=1"],
        ["method=sft", "rollout.staleness=1"],
        ["method=grpo", "engine=vllm", "engine.in_flight=true", "rollout.staleness=2"],
        ["method=grpo", "rollout.frozen=64", "gate=divergence", "advantage.zero_variance=keep"],
        ["method=trace", "rollout.frozen=256", "allocator=uniform", "predictor=none"],
        ["method=awpo", "judge=endpoint"],
        ["method=mixed", "judge=none", "advantage=group"],
        ["method=pivotrl", "judge=offline", "advantage=awpo", "advantage.tau_low=0.2", "advantage.tau_high=0.8"],
        ["method=pivotrl", "judge=offline", "advantage=mixed"],
        ["method=pivotrl", "states.refresh=0.5", "states.keep=mixed"],
        ["method=pivotrl", "states.refresh=null", "states.keep=all", "rollout.staleness=1"],
        ["experiment=composed/pivotrl+refresh", "gate=divergence", "reward=outcome", "rollout.turns=null"],
        ["method=grpo", "allocator=pcl", "predictor=tiny", "rollout.states=128"],
        ["method=grpo", "gate=predicted", "predictor=tiny"],
        ["method=grpo", "allocator=treepo", "advantage=tree_grpo", "advantage.zero_variance=refill"],
        ["method=pivotrl", "allocator=trace", "allocator.expansion=0", "predictor=tiny"],
        ["method=trace", "allocator=uniform", "predictor=none"],
        ["method=awpo", "allocator=trace", "allocator.expansion=0", "predictor=tiny", "predictor.reward_max=2"],
    ],
)
def test_the_ways_out_are_open(overrides: list[str]) -> None:
    check_config(compose_config(overrides, CONF, read=READ))


@pytest.mark.parametrize(("key", "value"), [("top_p", 0.9), ("top_k", 5), ("min_p", 0.1), ("min_p", 1.0)])
def test_filters_that_the_update_cannot_reproduce_are_refused(key: str, value: float) -> None:
    cfg = {"loss": {"_target_": "turnwise.algo.losses.clipped.Clipped"}, "rollout": {"sampling": {key: value}}}
    assert any(mistake.startswith(f"rollout.sampling.{key}:") for mistake in impossible_combinations(cfg))
    assert not any(m.startswith("rollout.sampling.top_k") for m in impossible_combinations({**cfg, "rollout": {}}))


@pytest.mark.parametrize("gate", ["divergence", "signal", "either", "sequential", "random_cut", "oracle"])
def test_a_gate_that_looks_when_all_have_ended_is_refused(gate: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(compose_config(["method=pivotrl", f"gate={gate}"], CONF, read=READ))
    (mistake,) = caught.value.mistakes
    assert mistake.startswith("gate: ") and "turn 10," in mistake and "gate=never" in mistake
