from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from turnwise.algo.losses.loss import Counts, LossInputs, Nll, merge_metrics


def batch(keep=slice(None)) -> LossInputs:
    logprobs = torch.tensor([-1.0, -2.0, -6.0, -9.0])
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0])
    turn = torch.tensor([0, 0, 1, 2])
    counts = Counts.of(weight, turn, turn)
    return LossInputs(
        logprobs_K=logprobs[keep].requires_grad_(),
        weight_K=weight[keep],
        turn_K=turn[keep],
        sequence_K=turn[keep],
        counts=counts,
        entropy_K=torch.tensor([1.0, 2.0, 6.0, 7.0])[keep],
    )


@pytest.mark.parametrize(
    ("loss", "value", "grad"),
    [
        (Nll(), 9 / 3, [-1 / 3, -1 / 3, -1 / 3, 0]),
        (Nll(aggregation="turn_mean_token_mean"), (1.5 + 6) / 2, [-1 / 4, -1 / 4, -1 / 2, 0]),
    ],
)
def test_by_hand(loss, value, grad) -> None:
    inputs = batch()
    output = loss(inputs)
    assert output.loss.item() == pytest.approx(value)
    output.loss.backward()
    assert inputs.logprobs_K.grad.tolist() == pytest.approx(grad)
    assert {name: metric.value for name, metric in output.metrics.items()} == {"nll": 3.0, "entropy": 3.0}


@pytest.mark.parametrize("loss", [Nll(), Nll(aggregation="turn_mean_token_mean")])
def test_micro_batches_add_up(loss) -> None:
    parts = [loss(batch(slice(0, 2))), loss(batch(slice(2, 4)))]
    whole = loss(batch())
    assert sum(part.loss.item() for part in parts) == pytest.approx(whole.loss.item())
    assert merge_metrics(part.metrics for part in parts) == whole.metrics


def test_needs_neither_reference_nor_entropy() -> None:
    loss = Nll()
    assert not loss.needs_reference and not loss.needs_entropy
    bare = replace(batch(), ref_logprobs_K=None, entropy_K=None)
    assert loss(bare).metrics.keys() == {"nll"}
