"""The presets of sizes and machines: each composes, passes the check and is planned."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from turnwise.config.check import check_config
from turnwise.experiments.command_line import Asked
from turnwise.experiments.jobs import job_of
from turnwise.experiments.sweep_file import find_sweep, sweep_names
from turnwise.planning.architectures import architecture
from turnwise.planning.memory import gpus_of, sharding
from turnwise.planning.plan import plan

CONF = Path(__file__).parents[3] / "conf"
OURS = ("no paper gives", "trace_tab5 has these rows")  # rows of ours that no paper has
MODELS = {"0_6b": "Qwen3-0.6B", "4b": "Qwen3-4B", "8b": "Qwen3-8B", "14b": "Qwen3-14B", "30b_a3b": "Qwen3-30B-A3B"}


@pytest.mark.parametrize(("model", "gpus"), product(MODELS, (1, 8, 16)))
def test_every_preset_is_what_its_name_says(composed, model: str, gpus: int) -> None:
    cfg = composed("method=grpo", "scale=qwen3", f"policy=qwen3_{model}", f"cluster={gpus}gpu")
    check_config(cfg)
    assert cfg.policy.model == f"Qwen/{MODELS[model]}" and gpus_of(cfg) == gpus
    assert sharding(cfg) == (gpus if model in ("14b", "30b_a3b") else 1, False)
    assert architecture(cfg.policy.model) is not None
    assert cfg.trainer.precision == "bf16-mixed" and cfg["update"].recompute


@pytest.mark.slow
def test_shards_divide_what_is_resident(composed, gpu) -> None:
    """Qwen3-14B, all weights in float32: 14.77 B x 4 bytes, of which a GPU of eight keeps an eighth, and its gradients and
    moments likewise; what is gathered stands beside."""
    full = ["scale=qwen3", "policy=qwen3_14b", "cluster=8gpu", "policy.lora.r=0", "policy.dtype=float32"]
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
    ahead = plan(composed(*full, "engine=vllm", "rollout.staleness=2"), gpu).memory
    offloaded = plan(composed(*full, "engine=vllm", "rollout.staleness=2", "trainer.strategy.offload=true"), gpu).memory
    assert ahead is not None and ahead.earlier == 2 * whole.shape.parameters * 4 // 8
    assert offloaded is not None and offloaded.earlier == 0


def test_servers_take_nothing_of_a_trainers_gpu(composed, gpu) -> None:
    found = plan(composed("method=grpo", "scale=qwen3", "policy=qwen3_14b", "cluster=8gpu", "engine=vllm"), gpu).memory
    assert found is not None and found.copy == found.cache == found.drawing == 0
    assert found.peak < 80e9


@pytest.mark.parametrize("method", ["sft", "grpo", "pivotrl", "selective"])
def test_the_largest_preset_of_one_machine_fits_beside_its_own_servers(composed, gpu, method: str) -> None:
    """As the comment of its servers says. A copy of the weights on each GPU would need 85 GB, and sample 17 times slower."""
    cfg = composed(f"method={method}", "scale=qwen3", "policy=qwen3_30b_a3b", "cluster=8gpu", "data.trajectories=20")
    found = plan(cfg, gpu)
    assert found.memory is not None and found.memory.peak < 21e9 and found.work is not None
    assert not [told for told in found.missing if not told.startswith("policy.model")]
    assert found.work.gpu_hours["sampling"] < 300
    check_config(
        composed(f"method={method}", "scale=qwen3", "policy=qwen3_30b_a3b", "cluster=8gpu", "engine=tree")
    )  # takes no key of the servers


def test_a_copy_that_is_not_asked_for_is_not_planned(composed, gpu) -> None:
    found = plan(
        composed("method=grpo", "scale=qwen3", "policy=qwen3_4b", "cluster=1gpu", "engine.copy=false"), gpu
    ).memory
    assert found is not None and found.copy == 0


def test_recomputing_keeps_less(composed, gpu) -> None:
    kept = [
        plan(
            composed("method=grpo", "scale=qwen3", "policy=qwen3_4b", "cluster=1gpu", f"update.recompute={again}"), gpu
        ).memory.activations  # type: ignore[union-attr]
        for again in ("true", "false")
    ]
    assert kept[0] < kept[1] / 8  # of 36 layers one is whole


@pytest.mark.slow
def test_what_waits_in_the_cpus_memory_is_not_on_the_gpu(composed, gpu) -> None:
    kept = [
        plan(
            composed("method=grpo", "scale=qwen3", "policy=qwen3_4b", "cluster=1gpu", f"update.offload={away}"), gpu
        ).memory.activations  # type: ignore[union-attr]
        for away in ("false", "true")
    ]
    entries = 2560 * 2  # bytes of one token's hidden state
    assert kept[0] - kept[1] == pytest.approx(35 * 16 * 1024 * entries, rel=0.01)  # of 36 layers one is there


def test_gpus_share_the_hours(composed, gpu) -> None:
    one, eight = (
        plan(composed("method=grpo", "scale=qwen3", "policy=qwen3_4b", f"cluster={n}gpu"), gpu).work for n in (1, 8)
    )
    assert one is not None and eight is not None
    for part in ("forward", "backward"):  # hours of GPUs, not of a clock
        assert eight.gpu_hours[part] == pytest.approx(one.gpu_hours[part])
    assert eight.gpu_hours["sampling"] >= one.gpu_hours["sampling"]  # each reads the weights for its share


# the rows of each table that take most; GPUs, and GB of one, as the scale file says
LARGEST = [
    ("awpo_tab2", "sft_8b", 8, 58),
    ("awpo_tab2", "awpo_8b", 8, 58),
    ("awpo_tab2", "sft_grpo_8b", 8, 58),
    ("awpo_tab3", "awpo_8b", 8, 58),
    ("trace_tab4", "trace_14b", 16, 47),
    ("trace_tab5", "trace_14b", 16, 47),
    ("trace_tab5", "pcl_fc_14b", 16, 47),
    ("trace_tab6", "trace", 16, 47),
    ("pivotrl_tab1", "pivotrl_swe", 8, 55),
    ("pivotrl_tab4", "full", 8, 55),
    ("pivotrl_tab4", "sft", 8, 55),
    ("pivotrl_fig1", "e2e", 8, 55),
    ("selective_tab5", "gated", 1, 35),
]


@pytest.mark.parametrize(("sweep", "row", "gpus", "most"), LARGEST)
def test_the_papers_largest_rows_fit_their_gpus_and_learn(composed, gpu, sweep, row, gpus, most) -> None:
    asked = Asked(find_sweep(sweep, CONF), CONF, "paper")
    job = job_of(asked, row, seed=0)
    cfg = composed(*(word for word in job.overrides if word != job.begin))
    if "bfcl" in str(cfg.env["_target_"]):
        pytest.importorskip("bfcl_eval", reason="env=bfcl needs make bfcl")
    check_config(cfg)
    found = plan(cfg, gpu)
    assert gpus_of(cfg) == gpus and found.memory is not None and found.memory.peak < most * 1e9
    assert not [told for told in found.missing if told.startswith(("policy.dtype", "GPU memory", "rollout.max_length"))]


def test_no_row_takes_another_dtype_or_rate_than_its_scale() -> None:
    """So that what is planned of one row of a scale, steps that bfloat16 would lose, holds for all of them."""
    scales = set()
    for name in sweep_names(CONF):
        asked = Asked(find_sweep(name, CONF), CONF, "paper")
        for row, made in asked.sweep.rows.items():
            if made.overrides is None or (made.needs.get("paper") or asked.sweep.needs.get("paper") or "").startswith(
                OURS
            ):
                continue
            given = dict(word.partition("=")[::2] for word in job_of(asked, row, seed=0).overrides)
            assert not given.keys() & {"policy", "policy.dtype", "update.learning_rate", "trainer", "engine"}, (
                f"{name}/{row}"
            )
            assert int(given.get("policy.lora.r", 1)) > 0, f"{name}/{row}"
            scales.add(given["scale"])
    assert scales == {"paper", "paper_awpo", "paper_trace", "paper_selective"}


def test_without_servers_awpos_largest_rows_need_larger_gpus_as_the_scale_says(composed, gpu) -> None:
    row = ["method=awpo", "env=apibank", "policy.model=Qwen/Qwen3-8B", "allocator.group_size=8", "engine=tree"]
    found = plan(composed("method=grpo", "scale=paper_awpo", *row), gpu)
    assert found.memory is not None and found.memory.peak > 80e9
    assert any(missing.startswith("GPU memory: ") for missing in found.missing)


def test_steps_that_bfloat16_would_lose_are_told(composed, gpu) -> None:
    found = plan(composed("method=grpo", "scale=paper_trace", "policy.dtype=bfloat16"), gpu)
    assert any(missing.startswith("policy.dtype: ") for missing in found.missing)
