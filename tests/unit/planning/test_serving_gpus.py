"""Whether the servers that a run starts itself fit beside its training, and sample on as many GPUs as the plan counts."""

from __future__ import annotations

import pytest

from turnwise.planning.plan import plan

PAPER = ["method=pivotrl", "scale=paper"]  # 30.5 billion parameters: 61 GB in bfloat16; eight GPUs train
LARGE, SHARED, FEW = "its part of the weights", "on GPUs that train", "but the plan's GPU-hours of sampling"
EIGHT = 'engine.local.devices=["0,1","2,3","4,5","6,7"]'


def told(composed, gpu, *overrides: str) -> list[str]:
    return [reason for reason in plan(composed(*overrides), gpu).missing if reason.startswith("engine.local")]


def test_one_server_beside_eight_gpus_that_train(composed, gpu) -> None:
    shared, few = told(composed, gpu, *PAPER)
    assert SHARED in shared and "72 GB" in shared and "27 GB of 80 GB" in shared and "engine.urls" in shared
    assert "on 1 of its GPUs" in few and "those of 8" in few
    assert all(reason.endswith("(docs/cluster.md#servers-in-a-job)") for reason in (shared, few))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('["--tensor-parallel-size=2","--gpu-memory-utilization=0.5"]', []),
        ('["--tensor-parallel-size","2","--gpu_memory_utilization","0.5"]', []),
        ('["--tensor-parallel-size=2"]', [SHARED]),
        ('["--gpu-memory-utilization=0.5"]', [LARGE]),
    ],
)
def test_servers_on_all_gpus_of_the_trainer(composed, gpu, arguments, found) -> None:
    servers = ["engine.local.servers=4", EIGHT, f"engine.local.arguments={arguments}"]
    reasons = told(composed, gpu, *PAPER, *servers)
    assert len(reasons) == len(found) and all(part in reason for part, reason in zip(found, reasons, strict=True))


@pytest.mark.parametrize(
    "overrides",
    [
        (*PAPER, "engine.urls=[http://node9:8100]"),
        ("method=selective", "scale=paper_selective"),  # trains on GPU 0 and samples on GPU 1
        ("method=grpo", "scale=qwen3", "policy=qwen3_4b", "cluster=8gpu"),  # no servers
        ("method=grpo", "engine=vllm", "data.trajectories=20"),  # trains on the CPU
    ],
)
def test_nothing_is_told_of_servers_with_gpus_of_their_own(composed, gpu, overrides) -> None:
    assert told(composed, gpu, *overrides) == []


def test_servers_of_all_weights_hold_them_in_their_own_dtype_and_on_the_trainers_node(composed, gpu) -> None:
    reasons = told(composed, gpu, "method=grpo", "scale=paper_trace", "policy.model=Qwen/Qwen3-14B")
    assert not any(LARGE in reason for reason in reasons)  # 30 GB in bfloat16, 59 GB in the trainer's float32
    assert reasons and not any("engine.urls" in reason for reason in reasons)
    half = told(
        composed, gpu, "method=grpo", "scale=paper_trace", "policy.model=Qwen/Qwen3-14B",
        'engine.local.arguments=["--gpu-memory-utilization=0.35"]',
    )  # fmt: skip
    assert any("a server takes 28 GB" in reason and "has 30 GB" in reason for reason in half)


def test_an_option_without_a_number_is_told(composed, gpu) -> None:
    arguments = 'engine.local.arguments=["--gpu-memory-utilization=half"]'
    (reason,) = told(composed, gpu, *PAPER, arguments)
    assert "needs a number" in reason and "'half'" in reason


def test_servers_on_gpus_that_are_given_by_name_are_counted(composed, gpu) -> None:
    named = 'engine.local.devices=["GPU-a,GPU-b","GPU-c,GPU-d"]'
    arguments = 'engine.local.arguments=["--tensor-parallel-size=2"]'
    (few,) = told(composed, gpu, *PAPER, "engine.local.servers=2", named, arguments)
    assert "on 4 of its GPUs" in few
