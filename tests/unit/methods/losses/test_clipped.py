"""The example: ratios 1.5, 0.5, 1.0 (turns 0, 0, 1) with advantage 1 in one sequence, 2.0 with advantage -1 in another."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.methods.loss import Aggregation, Clipped, Counts, LossInputs, Mean, merge_metrics
from turnwise.methods.sft import Nll

# -- clipped -----------------------------------------------------------------------------------------------------------

RATIO = torch.tensor([1.5, 0.5, 1.0, 2.0], dtype=torch.double)
TURN = torch.tensor([0, 0, 1, 2])
SEQUENCE = torch.tensor([0, 0, 0, 1])


def example(**changes) -> LossInputs:
    old = torch.tensor([-1.0, -2.0, -0.5, -3.0], dtype=torch.double)
    weight = changes.get("weight_K", torch.ones(4, dtype=torch.double))
    values = {
        "logprobs_K": (old + RATIO.log()).requires_grad_(),
        "old_logprobs_K": old,
        "advantage_K": torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=torch.double),
        "weight_K": weight,
        "turn_K": TURN,
        "sequence_K": SEQUENCE,
        "share_K": torch.tensor([1 / 6, 1 / 6, 1 / 6, 1 / 2], dtype=torch.double),
        "counts": Counts.of(weight, SEQUENCE, TURN),
    }
    return LossInputs(**(values | changes))


def loss_and_grad(loss: Clipped, batch: LossInputs) -> tuple[float, list[float]]:
    value = loss(batch).loss
    (grad,) = torch.autograd.grad(value, batch.logprobs_K)
    return value.item(), grad.tolist()


GEOMETRIC = 0.75 ** (1 / 3)


@pytest.mark.parametrize(
    ("loss", "value", "grad"),
    [
        # token losses: -min(1.5, 1.2), -0.5, -1.0, and -min(-2, -1.2) = 2
        (Clipped(), (-0.9 + 2) / 2, [0, -0.5 / 6, -1 / 6, 2 / 2]),
        (Clipped(aggregation="token_mean"), -0.7 / 4, [0, -0.5 / 4, -1 / 4, 2 / 4]),
        (Clipped(aggregation="turn_mean_token_mean"), (-0.85 - 1 + 2) / 3, [0, -0.5 / 6, -1 / 3, 2 / 3]),
        # the first sequence is one of three of its tree, the second alone in the other tree
        (Clipped(aggregation="tree_mean_seq_mean_token_mean"), -0.9 / 6 + 2 / 2, [0, -0.5 / 18, -1 / 18, 2 / 2]),
        (Clipped(aggregation="constant", constant_length=10), -0.7 / 20, [0, -0.5 / 20, -1 / 20, 2 / 20]),
        (Clipped(clip_high=0.28), ((-1.28 - 0.5 - 1) / 3 + 2) / 2, [0, -0.5 / 6, -1 / 6, 1]),
        (Clipped(clip_high=1.0), (-1.0 + 2) / 2, [-1.5 / 6, -0.5 / 6, -1 / 6, 1]),
        # the geometric mean of 1.5, 0.5 and 1.0 stands at each of the three tokens
        (Clipped(ratio="sequence"), (-GEOMETRIC + 2) / 2, [-GEOMETRIC / 6] * 3 + [1]),
        # the product over turn 0 is 0.75; its gradient reaches both tokens whole
        (
            Clipped(ratio="action", aggregation="turn_mean_token_mean"),
            (-0.75 - 1 + 2) / 3,
            [-0.75 / 3, -0.75 / 3, -1 / 3, 2 / 3],
        ),
        # no ratio, so nothing is clipped: the sum over each sample, and the gradient of -A log p
        (
            Clipped(ratio="none", aggregation="constant", constant_length=1),
            (-3 + 1) / 2,
            [-1 / 2, -1 / 2, -1 / 2, 1 / 2],
        ),
    ],
)
def test_surrogate_by_hand(loss, value, grad) -> None:
    ours = loss_and_grad(loss, example())
    assert ours[0] == pytest.approx(value)
    assert ours[1] == pytest.approx(grad)


def test_clip_range_of_the_credit_goes_before_the_losss_own() -> None:
    nan = math.nan
    batch = example(
        clip_low_K=torch.tensor([nan, nan, nan, nan]),
        clip_high_K=torch.tensor([0.4, nan, nan, nan], dtype=torch.double),
    )
    assert Clipped()(batch).loss.item() == pytest.approx(((-1.4 - 0.5 - 1) / 3 + 2) / 2)
    down = example(advantage_K=-torch.ones(4, dtype=torch.double))
    assert Clipped()(down).loss.item() == pytest.approx(((1.5 + 0.8 + 1) / 3 + 2) / 2)
    lower = example(
        advantage_K=-torch.ones(4, dtype=torch.double), clip_low_K=torch.tensor([nan, 0.3, nan, nan]).double()
    )
    assert Clipped()(lower).loss.item() == pytest.approx(((1.5 + 0.7 + 1) / 3 + 2) / 2)


@pytest.mark.parametrize(
    ("estimator", "value"), [("k1", -math.log(2)), ("k2", math.log(2) ** 2 / 2), ("k3", 1 - math.log(2))]
)
@pytest.mark.parametrize("importance", [False, True])
def test_kl_estimates_by_hand(estimator, value, importance) -> None:
    batch = example(advantage_K=torch.zeros(4, dtype=torch.double))
    twice = (batch.logprobs_K + math.log(2)).detach()  # pi_0 = 2 pi at every sampled token
    batch = example(advantage_K=torch.zeros(4, dtype=torch.double), ref_logprobs_K=twice)
    loss = Clipped(kl_beta=0.1, kl_estimator=estimator, kl_importance=importance, aggregation="token_mean")
    weight = RATIO.mean().item() if importance else 1.0
    assert loss(batch).loss.item() == pytest.approx(0.1 * value * weight)
    action = Clipped(
        kl_beta=0.1,
        kl_estimator=estimator,
        kl_importance=importance,
        ratio="action",
        aggregation="turn_mean_token_mean",
    )
    weighted = (2 * 0.75 + 1.0 + 2.0) / 3 if importance else 4 / 3  # turn 0 has two tokens: twice the KL
    assert action(batch).loss.item() == pytest.approx(0.1 * value * weighted)


@pytest.mark.parametrize(
    ("estimator", "importance", "expected"),
    [("k1", True, "kl"), ("k2", False, "kl"), ("k3", True, "kl"), ("k1", False, "zero"), ("k3", False, "forward")],
)
@pytest.mark.parametrize("ratio", ["token", "action"])
def test_expected_kl_gradient_is_the_one_documented(estimator, importance, expected, ratio) -> None:
    """Enumerate one state's actions, each weighted by its probability: the loss is then an exact expectation."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, dtype=torch.double, generator=generator, requires_grad=True)
    reference = torch.randn(6, dtype=torch.double, generator=generator).log_softmax(0)
    logprobs, ids = logits.log_softmax(0), torch.arange(6)
    batch = LossInputs(
        logprobs_K=logprobs, old_logprobs_K=logprobs.detach(), ref_logprobs_K=reference,
        advantage_K=torch.zeros(6, dtype=torch.double), weight_K=logprobs.detach().exp(),
        turn_K=ids, sequence_K=ids, counts=Counts(1, 1, 1),
    )  # fmt: skip
    loss = Clipped(kl_beta=1.0, kl_estimator=estimator, kl_importance=importance, ratio=ratio, aggregation="token_mean")
    (grad,) = torch.autograd.grad(loss(batch).loss, logits, retain_graph=True)
    value_A = {
        "kl": logprobs.exp() * (logprobs - reference),
        "forward": reference.exp() * (reference - logprobs),
        "zero": logprobs * 0,
    }[expected]
    (target,) = torch.autograd.grad(value_A.sum(), logits)
    torch.testing.assert_close(grad, target, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("ratio", ["token", "action"])
def test_on_policy_gradient_is_the_policy_gradient(ratio) -> None:
    """Exact over six actions of one token: minus the gradient of E_pi[A]."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, dtype=torch.double, generator=generator, requires_grad=True)
    advantage = torch.randn(6, dtype=torch.double, generator=generator)
    logprobs, ids = logits.log_softmax(0), torch.arange(6)
    batch = LossInputs(
        logprobs_K=logprobs, old_logprobs_K=logprobs.detach(), advantage_K=advantage, weight_K=logprobs.detach().exp(),
        turn_K=ids, sequence_K=ids, counts=Counts(1, 1, 1),
    )  # fmt: skip
    (grad,) = torch.autograd.grad(Clipped(ratio=ratio, aggregation="token_mean")(batch).loss, logits, retain_graph=True)
    torch.testing.assert_close(grad, -torch.autograd.grad((logprobs.exp() * advantage).sum(), logits)[0])


def test_entropy_bonus_by_hand() -> None:
    entropy = torch.tensor([1.0, 2.0, 3.0, 5.0], dtype=torch.double, requires_grad=True)
    batch = example(entropy_K=entropy, advantage_K=torch.zeros(4, dtype=torch.double))
    loss = Clipped(entropy_coef=0.1)(batch).loss
    assert loss.item() == pytest.approx(-0.1 * (2 + 5) / 2)
    loss.backward()
    assert entropy.grad.tolist() == pytest.approx([-0.1 / 6] * 3 + [-0.05])


def test_weight_scales_the_loss_and_no_denominator() -> None:
    batch = example(weight_K=torch.tensor([0.5, 0.5, 0.5, 1.0], dtype=torch.double))
    assert Clipped()(batch).loss.item() == pytest.approx((-0.45 + 2) / 2)


def test_tokens_of_weight_zero_are_in_no_loss_count_or_metric() -> None:
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.double)
    batch = example(weight_K=weight)
    broken = batch.logprobs_K.detach().clone()
    broken[3] = math.nan
    batch = example(weight_K=weight, logprobs_K=broken.requires_grad_())
    assert batch.counts == Counts(tokens=3, sequences=1, turns=2)
    value, grad = loss_and_grad(Clipped(), batch)
    assert value == pytest.approx(-0.9)
    assert grad[3] == 0
    assert Clipped()(batch).metrics["ratio_mean"] == Mean(pytest.approx(3.0), 3)


def test_nothing_to_train_on_is_a_loss_of_zero_that_can_be_differentiated() -> None:
    out = Clipped(kl_beta=0.1)(example(weight_K=torch.zeros(4).double(), ref_logprobs_K=torch.zeros(4).double()))
    assert out.loss.item() == 0
    out.loss.backward()
    assert out.metrics["clip_fraction"].value == 0


@pytest.mark.parametrize("ratio", ["token", "sequence", "action"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("shift", [800.0, -800.0])
def test_absurd_ratios_leave_finite_gradients(ratio, sign, shift) -> None:
    old = torch.tensor([-1.0, -2.0, -0.5, -3.0], dtype=torch.double)
    batch = example(
        logprobs_K=(old + shift).requires_grad_(), advantage_K=torch.full((4,), sign).double(), ref_logprobs_K=old
    )
    value, grad = loss_and_grad(Clipped(ratio=ratio, kl_beta=0.1), batch)
    assert math.isfinite(value)
    assert all(math.isfinite(g) for g in grad)


# -- clipped updates ---------------------------------------------------------------------------------------------------


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


def test_sequence_ratio_weights_each_kl_estimate_by_its_tokens_own_ratio() -> None:
    zero = torch.zeros(4, dtype=torch.double)
    reference = (example().logprobs_K + torch.tensor([1.0, 2.0, 3.0, 4.0])).detach()
    batch = example(advantage_K=zero, ref_logprobs_K=reference)
    loss = Clipped(ratio="sequence", kl_beta=1.0, kl_estimator="k1", aggregation="token_mean")
    assert loss(batch).loss.item() == pytest.approx(-(1.5 * 1 + 0.5 * 2 + 1 * 3 + 2 * 4) / 4)


LOSSES = [
    Clipped(ratio=ratio, aggregation=aggregation, constant_length=7 if aggregation == "constant" else None,
            clip_high=0.28, kl_beta=0.05, kl_estimator=estimator, entropy_coef=0.01)
    for ratio in ("token", "sequence", "action")
    for aggregation in get_args(Aggregation)
    for estimator in ("k1", "k3")
] + [Nll(), Nll(aggregation="turn_mean_token_mean")]  # fmt: skip


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


# -- nll ---------------------------------------------------------------------------------------------------------------


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
