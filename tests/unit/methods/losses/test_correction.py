"""Importance weights and masks: numbers worked by hand, and what a corrected loss estimates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from turnwise.methods.loss import Clipped, Correction, Counts, LossInputs

OPEN = {"mask_low": None, "mask_high": None}


def batch_of(
    ratios: list[float], turns: list[int], sequences: list[int], **given: Any
) -> tuple[LossInputs, torch.Tensor]:
    """Tokens whose log-probs differ from the sampler's by these ratios; every sampler's log-prob is -1."""
    old_K = torch.full((len(ratios),), -1.0, dtype=torch.double)
    weight_K = torch.ones(len(ratios), dtype=torch.double)
    turn_K, sequence_K = torch.tensor(turns), torch.tensor(sequences)
    fields = {
        "logprobs_K": (old_K + torch.tensor(ratios, dtype=torch.double).log()).requires_grad_(),
        "old_logprobs_K": old_K,
        "weight_K": weight_K,
        "turn_K": turn_K,
        "sequence_K": sequence_K,
        "counts": Counts.of(weight_K, sequence_K, turn_K),
        "advantage_K": torch.ones(len(ratios), dtype=torch.double),
        **given,
    }
    return LossInputs(**fields), old_K


def with_near(
    ratios: list[float], turns: list[int], sequences: list[int]
) -> tuple[LossInputs, torch.Tensor, torch.Tensor]:
    """The same before the first step, when the clip is around the current policy."""
    batch, old_K = batch_of(ratios, turns, sequences)
    return batch, old_K, batch.logprobs_K


RATIOS, TURNS, SEQUENCES = [1.5, 4.0, 0.5, 1.0, 1.0], [0, 0, 1, 2, 2], [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("level", "weights", "capped"),
    [
        ("token", [1.5, 2.0, 0.5, 1.0, 1.0], [0, 1, 0, 0, 0]),
        ("action", [2.0, 2.0, 0.5, 1.0, 1.0], [1, 1, 0, 0, 0]),  # 1.5 x 4 = 6
        ("sequence", [2.0, 2.0, 2.0, 1.0, 1.0], [1, 1, 1, 0, 0]),  # 1.5 x 4 x 0.5 = 3
    ],
)
def test_weights_by_hand(level: Any, weights: list[float], capped: list[int]) -> None:
    found = Correction(level=level, **OPEN)(*with_near(RATIOS, TURNS, SEQUENCES))
    assert found.weight_K.tolist() == pytest.approx(weights)
    assert found.capped_K.int().tolist() == capped
    assert found.kept_K.all() and not found.weight_K.requires_grad


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ((0.99, 1.01), [False, True]),  # the geometric mean of the first sample is 3 ** (1/3) = 1.44
        ((None, 1.45), [True, True]),
        ((None, 1.44), [False, True]),
        ((1.0, None), [True, True]),
    ],
)
def test_masks_by_hand(bounds: tuple[float | None, float | None], kept: list[bool]) -> None:
    found = Correction(mask_low=bounds[0], mask_high=bounds[1])(*with_near(RATIOS, TURNS, SEQUENCES))
    assert found.kept_K.tolist() == [kept[0]] * 3 + [kept[1]] * 2


def test_the_weight_multiplies_the_gradient_and_the_clip_never_cuts() -> None:
    """On-policy the surrogate's gradient is that of A log pi; corrected, each token's is multiplied by its weight."""
    batch, _ = batch_of(RATIOS, TURNS, SEQUENCES)
    out = Clipped(aggregation="token_mean", correction=Correction(**OPEN))(batch)
    out.loss.backward()
    assert batch.logprobs_K.grad is not None
    assert (-5 * batch.logprobs_K.grad).tolist() == pytest.approx([1.5, 2.0, 0.5, 1.0, 1.0])
    assert out.metrics["clip_fraction"].value == 0
    assert out.metrics["ratio_max"].value == pytest.approx(4.0)  # of what was really sampled
    assert out.metrics["correction_weight"].value == pytest.approx(6.0 / 5)
    assert out.metrics["correction_capped"].value == pytest.approx(1 / 5)
    assert out.metrics["correction_masked"].value == 0


def test_over_several_steps_the_clip_is_around_the_policy_before_the_first() -> None:
    """pi / near is 1.5, 2, 1, 1 and 0.8, of which the clip cuts the first two; near / sampler is the weight, at most 2."""
    near_K = torch.tensor([1.0, 2.0, 0.5, 1.0, 1.25], dtype=torch.double).log() - 1
    batch, _ = batch_of(RATIOS, TURNS, SEQUENCES, near_logprobs_K=near_K)
    out = Clipped(aggregation="token_mean", correction=Correction(**OPEN))(batch)
    out.loss.backward()
    assert batch.logprobs_K.grad is not None
    assert (-5 * batch.logprobs_K.grad).tolist() == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.25 * 0.8])
    assert out.metrics["clip_fraction"].value == pytest.approx(2 / 5)
    assert out.metrics["correction_weight"].value == pytest.approx(5.75 / 5)
    assert out.metrics["ratio_max"].value == pytest.approx(4.0)


def test_a_masked_sample_teaches_nothing_and_stays_in_the_denominators() -> None:
    entropy_K = torch.ones(5, dtype=torch.double, requires_grad=True)
    reference_K = torch.full((5,), -2.0, dtype=torch.double)
    batch, _ = batch_of(RATIOS, TURNS, SEQUENCES, ref_logprobs_K=reference_K, entropy_K=entropy_K)
    loss = Clipped(aggregation="token_mean", kl_beta=0.5, entropy_coef=0.1, correction=Correction())
    out = loss(batch)
    out.loss.backward()
    assert batch.logprobs_K.grad is not None and entropy_K.grad is not None
    assert batch.logprobs_K.grad[:3].tolist() == entropy_K.grad[:3].tolist() == [0.0] * 3
    assert entropy_K.grad[3:].tolist() == pytest.approx([-0.1 / 5] * 2)
    # the two tokens that are left: -1 + 0.5 k3(x) - 0.1 with x = -2 + 1, over five tokens
    assert out.loss.item() == pytest.approx(2 * (-1 + 0.5 * (math.exp(-1) - 1 + 1) - 0.1) / 5)
    assert out.metrics["correction_masked"].value == pytest.approx(3 / 5)


def test_the_weighted_gradient_is_that_of_the_trainers_own_policy() -> None:
    """E over the sampler's draws of w A grad log pi is E over pi's own draws of A grad log pi, exactly, on four actions."""
    logits = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.double, requires_grad=True)
    sampler = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.double)
    advantage = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.double)
    logp = logits.log_softmax(-1)
    (right,) = torch.autograd.grad((logp.exp() * advantage).sum(), logits, retain_graph=True)
    total = torch.zeros(4, dtype=torch.double)
    for action in range(4):
        ids = torch.tensor([0])
        batch = LossInputs(
            logprobs_K=logp[action][None],
            old_logprobs_K=sampler[action].log()[None],
            advantage_K=advantage[action][None],
            weight_K=torch.ones(1, dtype=torch.double),
            turn_K=ids,
            sequence_K=ids,
            counts=Counts(1, 1, 1),
        )
        out = Clipped(correction=Correction(cap=100.0, **OPEN))(batch)
        (gradient,) = torch.autograd.grad(-out.loss, logits, retain_graph=True)
        total += sampler[action] * gradient
    assert total.tolist() == pytest.approx(right.tolist())


@pytest.mark.parametrize("shift", [800.0, -800.0])
def test_absurd_ratios_stay_finite(shift: float) -> None:
    batch, _ = batch_of([1.0] * 5, TURNS, SEQUENCES, old_logprobs_K=torch.full((5,), -1.0 + shift, dtype=torch.double))
    for level in ("token", "action", "sequence"):
        out = Clipped(kl_beta=0.0, correction=Correction(level=level, cap=None, **OPEN))(batch)  # type: ignore[arg-type]
        assert math.isfinite(out.loss.item())
        assert torch.autograd.grad(out.loss, batch.logprobs_K)[0].isfinite().all()
