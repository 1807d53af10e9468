"""The presets of sizes and machines: each composes, passes the check and is planned."""

from __future__ import annotations

from itertools import product

import pytest

from turnwise.config_check import check_config
from turnwise.planning.architectures import architecture
from turnwise.planning.memory import gpus_of, sharding
from turnwise.planning.plan import plan

MODELS = {"0_6b": "Qwen3-0.6B", "4b": "Qwen3-4B", "8b": "Qwen3-8B", "14b": "Qwen3-14B", "30b_a3b": "Qwen3-30B-A3B"}


@pytest.mark.parametrize(("model", "gpus"), product(MODELS, (1, 8, 16)))
def test_every_preset_is_what_its_name_says(composed, model: str, gpus: int) -> None:
    cfg = composed(f"scale=qwen3_{model}_{gpus}gpu")
    check_config(cfg)
    assert cfg.policy.model == f"Qwen/{MODELS[model]}" and gpus_of(cfg) == gpus
    assert sharding(cfg) == (gpus if model in ("14b", "30b_a3b") else 1, False)
    assert architecture(cfg.policy.model) is not None
    assert cfg.trainer.precision == "bf16-mixed" and cfg["update"].recompute


def test_shards_divide_what_is_resident(composed, gpu) -> None:
    """Qwen3-14B, all weights in float32: 14.77 B x 4 bytes, of which a GPU of eight keeps an eighth, and its gradients and
    moments likewise; what is gathered stands beside."""
    full = ["scale=qwen3_14b_8gpu", "policy.lora.r=0", "policy.dtype=float32"]
    sharded = plan(composed(*full), gpu)
    whole = plan(composed(*full, "trainer.strategy=ddp"), gpu)
    assert sharded.memory is not None and whole.memory is not None and whole.shape is not None
    assert whole.memory.optimiser == 2 * whole.shape.parameters * 4
    assert sharded.memory.optimiser == whole.memory.optimiser // 8
    embeddings = 2 * 151936 * 5120 * 4
    layer = (whole.memory.weights - embeddings) / 40
    assert sharded.memory.weights == pytest.approx(whole.memory.weights / 8 + embeddings + 2 * layer, rel=1e-6)
    assert sharded.memory.copy == whole.memory.copy == whole.shape.parameters * 4  # the engine's own stays whole
    assert sharded.memory.activations == whole.memory.activations


def test_servers_take_nothing_of_a_trainers_gpu(composed, gpu) -> None:
    found = plan(composed("scale=qwen3_30b_a3b_8gpu", "engine=vllm"), gpu).memory
    assert found is not None and found.copy == found.cache == found.drawing == 0
    assert found.peak < 80e9


def test_a_copy_that_is_not_asked_for_is_not_planned(composed, gpu) -> None:
    found = plan(composed("scale=qwen3_4b_1gpu", "engine.copy=false"), gpu).memory
    assert found is not None and found.copy == 0


def test_recomputing_keeps_less(composed, gpu) -> None:
    kept = [
        plan(composed("scale=qwen3_4b_1gpu", f"update.recompute={again}"), gpu).memory.activations  # type: ignore[union-attr]
        for again in ("true", "false")
    ]
    assert kept[0] < kept[1] / 8  # of 36 layers one is whole


def test_what_waits_in_the_cpus_memory_is_not_on_the_gpu(composed, gpu) -> None:
    kept = [
        plan(composed("scale=qwen3_4b_1gpu", f"update.offload={away}"), gpu).memory.activations  # type: ignore[union-attr]
        for away in ("false", "true")
    ]
    entries = 2560 * 2  # bytes of one token's hidden state
    assert kept[0] - kept[1] == pytest.approx(35 * 16 * 1024 * entries, rel=0.01)  # of 36 layers one is there


def test_gpus_share_the_hours(composed, gpu) -> None:
    one, eight = (plan(composed(f"scale=qwen3_4b_{n}gpu"), gpu).work for n in (1, 8))
    assert one is not None and eight is not None
    for part in ("forward", "backward"):  # hours of GPUs, not of a clock
        assert eight.gpu_hours[part] == pytest.approx(one.gpu_hours[part])
    assert eight.gpu_hours["sampling"] >= one.gpu_hours["sampling"]  # each reads the weights for its share


@pytest.mark.parametrize(
    ("overrides", "gpus"),
    [
        ("scale=paper_selective method=grpo allocator.group_size=8", 1),
        ("scale=paper_trace method=trace env=search policy.model=Qwen/Qwen3-8B", 16),
        ("scale=paper_trace method=trace env=search policy.model=Qwen/Qwen3-14B", 16),
        ("scale=paper_awpo method=awpo env=bfcl env.level=public allocator.group_size=8", 8),
        ("scale=paper_awpo method=awpo env=apibank allocator.group_size=8 engine=vllm", 8),
        ("scale=paper method=pivotrl trainer=fsdp engine=vllm", 8),
    ],
)
def test_the_papers_scales_fit_the_gpus_that_they_name(composed, gpu, overrides: str, gpus: int) -> None:
    if "env=bfcl" in overrides:
        pytest.importorskip("bfcl_eval", reason="env=bfcl needs make bfcl")
    cfg = composed(*overrides.split())
    check_config(cfg)
    found = plan(cfg, gpu).memory
    assert gpus_of(cfg) == gpus and found is not None and found.peak < 80e9


def test_awpos_largest_rows_fit_no_gpu_of_80_gb_and_the_scale_says_so(composed, gpu) -> None:
    row = ["method=awpo", "env=apibank", "policy.model=Qwen/Qwen3-8B", "allocator.group_size=8", "engine=vllm"]
    found = plan(composed("scale=paper_awpo", *row), gpu)
    assert found.memory is not None and 80e9 < found.memory.peak < 141e9
    assert any(missing.startswith("GPU memory: ") for missing in found.missing)
