"""Memory, work and what is missing of a run, by hand."""

from __future__ import annotations

import pytest

from turnwise.planning import flops
from turnwise.planning.gpus import Gpu
from turnwise.planning.plan import plan

SMALL = ["rollout.states=8", "rollout.trajectories=4", "data.trajectories=20", "trainer.max_epochs=3"]


def test_the_shipped_policy(composed, gpu) -> None:
    found = plan(composed("method=local", *SMALL), gpu)
    weights, adapter = 4 * 1_808_448, 4 * 221_184
    assert found.memory is not None and found.work is not None and found.shape is not None
    assert found.memory.weights == weights + adapter
    assert found.memory.gradients == adapter and found.memory.optimiser == 2 * adapter
    assert found.memory.copy == weights and found.memory.predictor == 0
    spines = -(-round(found.tokens.history) // 128) * 128
    played = 64 * (-(-round(found.around.history) // 128) * 128)  # episodes that are evaluated together
    assert found.memory.cache == max(4 * spines, played) * 3072  # 2 x 4 layers x 2 heads x 48 x 4 bytes
    assert found.memory.peak < 1e9
    assert found.missing == ()
    taken = found.work.flops
    step = found.tokens
    once = flops.forward(found.shape, step.stored, step.row, step.trained)
    assert taken["forward"] == pytest.approx(3 * once)
    assert taken["reference"] == taken["forward"]  # kl_beta is above 0
    assert taken["total"] == pytest.approx(sum(value for name, value in taken.items() if name != "total"))
    assert found.record()["tokens"]["all"]["sampled"] == 3 * step.sampled


def test_a_buffer_is_sampled_once_and_trained_on_at_every_step(composed, gpu) -> None:
    own = plan(composed("method=grpo", *SMALL), gpu)
    frozen = plan(
        composed("method=grpo", *SMALL, "rollout.frozen=40"), gpu
    )  # 5 iterations' worth, where 3 are trained on
    assert own.work is not None and frozen.work is not None
    assert frozen.work.flops["sampling"] == pytest.approx(5 / 3 * own.work.flops["sampling"])
    assert frozen.work.flops["forward"] == own.work.flops["forward"]
    told = frozen.record()["tokens"]["all"]
    assert told["sampled"] == 5 * frozen.tokens.sampled and told["trained"] == 3 * frozen.tokens.trained


def test_a_collection_beside_the_update_needs_room_of_its_own(composed, gpu) -> None:
    turns = plan(composed("method=local", *SMALL), gpu).memory
    ahead = plan(composed("method=local", *SMALL, "rollout.staleness=1"), gpu).memory
    assert turns is not None and ahead is not None
    assert turns.drawing > 0 and turns.activations > 0 and turns.earlier == 0
    assert ahead.earlier == 4 * 221_184  # the adapter of an update ago
    less = min(turns.drawing, turns.activations)
    drawn = 34 * 8 * 16 * 960  # bytes of an entry, states, group, vocabulary
    assert turns.logits == 20 * 1024 * 960 and ahead.logits == turns.logits + drawn
    assert ahead.peak == turns.peak + ahead.earlier + less + drawn
    assert "earlier" in ahead.parts() and "overlapped" not in ahead.parts()


def test_hours_are_work_over_what_the_gpu_gives(composed, gpu) -> None:
    found = plan(composed("method=grpo", "scale=paper", "policy=qwen3_4b", "trainer.max_epochs=2"), gpu)
    assert found.work is not None
    for part in ("forward", "backward"):
        assert found.work.gpu_hours[part] == pytest.approx(found.work.flops[part] / (989e12 * 0.4) / 3600)
    slower = Gpu("h100", 80.0, 989.0, 3.35, utilisation=0.2, bandwidth_utilisation=0.5)
    assert slower.seconds(1e15) == 2 * gpu.seconds(1e15) == pytest.approx(1e15 / (989e12 * 0.2))
    assert gpu.seconds(1.0, 3.35e12) == 2.0  # bound by memory


@pytest.mark.slow
def test_layers_that_are_computed_again_cost_a_second_pass(composed, gpu) -> None:
    ours = ("method=grpo", "scale=paper", "policy=qwen3_4b", "trainer.max_epochs=2")
    again, once = (plan(composed(*ours, f"update.recompute={value}"), gpu).work for value in ("true", "false"))
    assert again is not None and once is not None
    assert again.flops["forward"] == once.flops["forward"]
    head = 0.05 * once.flops["forward"]  # the head's logits are not part of the layers
    assert again.flops["backward"] - once.flops["backward"] == pytest.approx(once.flops["forward"], abs=head)


def test_a_step_of_decoding_reads_the_weights_at_least(composed, gpu) -> None:
    """One history at a time: as many steps as there are tokens to write, each with all weights."""
    small = ["policy=qwen3_4b", "trainer=gpu", "engine=tree", "engine.memory_gb=0.1", "trainer.max_epochs=1"]
    cfg = composed("method=grpo", "scale=paper", *small)
    found = plan(cfg, gpu)
    assert found.work is not None and found.shape is not None
    rounds = found.tokens.histories * found.tokens.depth * found.lengths.reply
    assert found.work.gpu_hours["sampling"] * 3600 > rounds * found.shape.weight_bytes / (3.35e12 * 0.5)


def test_a_base_row_trains_nothing(composed, gpu) -> None:
    found = plan(composed("method=sft", "trainer.max_epochs=0"), gpu)
    assert found.memory is not None and found.work is not None
    assert found.memory.gradients == found.memory.activations == 0
    assert found.work.flops["total"] == found.work.flops["evaluation"] > 0


def test_what_is_missing_is_told_with_the_way_out(composed, gpu, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("TURNWISE_JUDGE_KEY", raising=False)
    overrides = ["method=awpo", "scale=paper_awpo", "judge=endpoint", "data.file=nowhere.jsonl", "trainer.devices=8"]
    overrides += ["rollout.states=4", "update.recompute=false", "policy.dtype=bfloat16"]
    told = "\n".join(plan(composed(*overrides), gpu).missing)
    assert "data.file: nowhere.jsonl does not exist" in told
    assert "policy.model: the weights of Qwen/Qwen3-4B are not on this machine; run `hf download Qwen/Qwen3-4B`" in told
    assert "TURNWISE_JUDGE_KEY is not set" in told
    assert "on a GPU of 80 GB; the largest part" in told and "lower update.batch_tokens" in told
    assert "set policy.dtype=float32" in told
    assert "set rollout.states to at least 8" in told


def test_an_opening_that_leaves_no_room_for_a_reply_is_told(composed, gpu) -> None:
    limits = ["rollout.max_length=2048", "rollout.sampling.max_tokens=1000"]
    told = plan(composed("method=grpo", *limits, *SMALL), gpu, {"opening": 1048.4}).missing
    assert [reason for reason in told if reason.startswith("rollout.max_length: an opening of 1,048 tokens (given)")]
    assert "set rollout.max_length to 2,049 or more" in told[0]
    assert plan(composed("method=grpo", *limits, *SMALL), gpu, {"opening": 1048.0}).missing == ()


@pytest.mark.slow
def test_a_user_behind_an_endpoint_is_asked_with_a_key(composed, gpu, monkeypatch) -> None:
    monkeypatch.delenv("TURNWISE_USER_KEY", raising=False)
    asked = ["method=grpo", "env=tau2", "env.user=endpoint", *SMALL]
    told = [reason for reason in plan(composed(*asked), gpu).missing if reason.startswith("env.endpoint: ")]
    assert len(told) == 1 and "TURNWISE_USER_KEY" in told[0] and "http://127.0.0.1:8001/v1" in told[0]
    monkeypatch.setenv("TURNWISE_USER_KEY", "x")
    assert not any(reason.startswith("env.endpoint") for reason in plan(composed(*asked), gpu).missing)


def test_a_world_inside_another_one_is_planned_by_its_own_settings(composed, gpu) -> None:
    left = [f"env.worlds.{name}=null" for name in ("bfcl", "software", "terminal")]
    found = plan(composed("method=grpo", "env=mixture", "env.worlds.search.horizon=5", *left, *SMALL), gpu)
    assert found.missing == ()
    assert (found.lengths.episode, found.lengths.source["episode"]) == (5, "at most env.worlds.search.horizon")
    lacking = "env.worlds.search.files={train: nowhere.json}"
    told = plan(composed("method=grpo", "env=mixture", lacking, *left, *SMALL), gpu).missing
    assert any("env.worlds.search.files.train: nowhere.json does not exist" in reason for reason in told)


def test_a_model_of_unknown_shape_is_planned_as_far_as_it_goes(composed, gpu) -> None:
    found = plan(composed("method=grpo", "policy.model=nobody/model"), gpu)
    assert found.shape is None and found.work is None and found.tokens.sampled > 0
    assert "nobody/model" in found.missing[0]
    assert found.record()["memory_gb"] is None


def test_a_gated_model_asks_for_a_licence(composed, gpu) -> None:
    found = plan(composed("method=grpo", "scale=paper", "policy.model=meta-llama/Llama-3.2-3B-Instruct"), gpu)
    assert any("licence and a token (HF_TOKEN)" in reason for reason in found.missing)


@pytest.mark.parametrize("wrong", [{"memory_gb": 0}, {"utilisation": 1.5}, {"bandwidth_utilisation": 0}])
def test_a_gpu_out_of_range_is_refused(wrong) -> None:
    whole = {"name": "x", "memory_gb": 80.0, "peak_tflops": 1.0, "bandwidth_tb_s": 1.0}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Gpu(**(whole | wrong))
