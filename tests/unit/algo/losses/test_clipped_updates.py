"""Metrics of the clipped loss by hand, and micro-batches that add up to their update."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.algo.losses.test_clipped import example

from turnwise.algo.losses.clipped import Clipped
from turnwise.algo.losses.loss import AGGREGATIONS, Counts, LossInputs, Max, Mean, merge_metrics


def test_metrics_by_hand() -> None:
    reference = example().logprobs_K.detach() + math.log(2)
    entropy = torch.tensor([1.0, 2.0, 3.0, 5.0], dtype=torch.double)
    batch = example(
        ref_logprobs_K=reference, entropy_K=entropy, advantage_K=torch.tensor([1.0, -1.0, 1.0, -1.0]).double()
    )
    metrics = {name: metric.value for name, metric in Clipped()(batch).metrics.items()}
    sampler = (0.5 - math.log(1.5)) + (-0.5 - math.log(0.5)) + 0 + (1 - math.log(2))
    assert metrics == pytest.approx(
        {
            "clip_fraction": 0.5,  # 1.5 with A > 0 and 0.5 with A < 0; 2.0 with A < 0 is not cut
            "clip_fraction_low": 0.25,
            "clip_fraction_high": 0.25,
            "ratio_mean": 5 / 4,
            "ratio_max": 2.0,
            "kl_sampler": sampler / 4,
            "mismatch_mean": (math.log(1.5) + 2 * math.log(2)) / 4,
            "mismatch_max": math.log(2),
            "kl_ref": 1 - math.log(2),
            "entropy": 11 / 4,
        }
    )


def test_only_tokens_whose_gradient_is_cut_count_as_clipped() -> None:
    # 0.5 with A > 0 and 2.0 with A < 0 lie outside the range and still pull back towards it
    metrics = Clipped()(example()).metrics
    assert {name: metrics[f"clip_fraction{name}"].value for name in ("", "_low", "_high")} == {
        "": 0.25,
        "_low": 0,
        "_high": 0.25,
    }


def test_sequence_ratio_weights_each_kl_estimate_by_its_tokens_own_ratio() -> None:
    zero = torch.zeros(4, dtype=torch.double)
    reference = (example().logprobs_K + torch.tensor([1.0, 2.0, 3.0, 4.0])).detach()
    batch = example(advantage_K=zero, ref_logprobs_K=reference)
    loss = Clipped(ratio="sequence", kl_beta=1.0, kl_estimator="k1", aggregation="token_mean")
    assert loss(batch).loss.item() == pytest.approx(-(1.5 * 1 + 0.5 * 2 + 1 * 3 + 2 * 4) / 4)


def test_metrics_of_micro_batches_merge() -> None:
    merged = merge_metrics([{"a": Mean(2.0, 4), "m": Max(1.0)}, {"a": Mean(4.0, 2), "m": Max(3.0), "b": Mean(1.0, 1)}])
    assert {name: metric.value for name, metric in merged.items()} == {"a": 1.0, "m": 3.0, "b": 1.0}


LOSSES = [
    Clipped(ratio=ratio, aggregation=aggregation, constant_length=7 if aggregation == "constant" else None,
            clip_high=0.28, kl_beta=0.05, kl_estimator=estimator, entropy_coef=0.01)
    for ratio in ("token", "sequence", "action")
    for aggregation in AGGREGATIONS
    for estimator in ("k1", "k3")
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(
        st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=6
    ),  # tokens[sequence][turn]
    loss=st.sampled_from(LOSSES),
    micro=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    seed=st.integers(0, 10_000),
)
def test_micro_batches_add_up_to_the_update(shape, loss, micro, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    sequence, turn = [], []
    for s, turns in enumerate(shape):
        for t, tokens in enumerate(turns):
            sequence += [s] * tokens
            turn += [10 * s + t] * tokens
    k = len(turn)
    parameter, old, reference, advantage = torch.randn(4, k, dtype=torch.double, generator=generator).unbind()
    parameter = parameter.clone().requires_grad_()
    sequence_K, turn_K = torch.tensor(sequence), torch.tensor(turn)
    sequence_weight = torch.tensor([0.0, 1.0, 0.5, 1.0, 1.0, 2.0], dtype=torch.double)
    weight_K = sequence_weight[sequence_K]
    fixed = {
        "old_logprobs_K": parameter.detach() + 0.3 * old,
        "ref_logprobs_K": parameter.detach() + 0.3 * reference,
        "advantage_K": advantage,
        "weight_K": weight_K,
        "turn_K": turn_K,
        "sequence_K": sequence_K,
        "share_K": torch.rand(6, dtype=torch.double, generator=generator)[sequence_K],
    }
    counts = Counts.of(weight_K, sequence_K, turn_K)

    def update(groups: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, dict]:
        outputs = [
            loss(
                LossInputs(
                    logprobs_K=parameter[keep], entropy_K=(parameter**2)[keep], counts=counts,
                    **{name: value[keep] for name, value in fixed.items()},
                )
            )
            for keep in groups
        ]  # fmt: skip
        total = sum(output.loss for output in outputs)
        merged = merge_metrics(output.metrics for output in outputs)
        return total, torch.autograd.grad(total, parameter)[0], {name: metric.value for name, metric in merged.items()}

    whole = update([torch.ones(k, dtype=torch.bool)])
    owner = torch.tensor(micro)[sequence_K]
    parts = update([owner == m for m in owner.unique()])
    torch.testing.assert_close(parts[:2], whole[:2])
    assert parts[2] == pytest.approx(whole[2])
