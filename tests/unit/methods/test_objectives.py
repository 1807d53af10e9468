"""The objectives that three methods compose to, advantage and loss together, against numbers worked by hand.

Two states have two samples each of one turn. The first state's rewards differ (A = 1 and -1), the second's are equal
(A = 0). Ratios of the tokens: 1.5 and 0.5; 2; 1 and 1; 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from tests.configuration_files import READ

from turnwise.config.schema import compose_config
from turnwise.methods.credit import credit_all
from turnwise.methods.loss import Counts, LossInputs
from turnwise.types import Rewards, RolloutTree, State, Task, Turn

CONF = Path(__file__).parents[3] / "conf"
RATIOS = [[[1.5, 0.5], [2.0]], [[1.0, 1.0], [1.0]]]  # of each token, by state and sample


def objective(
    method: str, rewards: Sequence[Rewards], reference: float = 1.0, *overrides: str
) -> tuple[float, list[float]]:
    """J and its gradient by the tokens' log-probs. ``reference`` is pi_0 / pi at the tokens of the third sample."""
    cfg = compose_config([f"method={method}", "advantage.eps=0", *overrides], CONF, read=READ)
    loss, rule = instantiate(cfg.loss), instantiate(cfg.advantage)
    trees = [
        RolloutTree(
            State(f"s{n}", Task("toy", "0", "train"), (1,)), [Turn(-1, [1] * len(one), [-1.0]) for one in state]
        )
        for n, state in enumerate(RATIOS)
    ]
    credits = credit_all(rule, trees, rewards, {"peak_outcome": 2.0}).credits
    samples = [one for state in RATIOS for one in state]
    by_sample = torch.arange(len(samples))
    length = torch.tensor([len(one) for one in samples])

    def spread(name: str) -> Any:
        values = [getattr(credit, name) for credit in credits]
        return None if values[0] is None else torch.tensor([*chain(*values)]).double().repeat_interleave(length)

    number = by_sample.repeat_interleave(length)
    log_ratio = torch.tensor([ratio for one in samples for ratio in one], dtype=torch.double).log()
    old = torch.full_like(log_ratio, -1.0)
    logprobs = (old + log_ratio).requires_grad_()
    weight = spread("weight")
    batch = LossInputs(
        logprobs_K=logprobs, old_logprobs_K=old, advantage_K=spread("advantage"), weight_K=weight, turn_K=number,
        sequence_K=number, counts=Counts.of(weight, number, number), clip_low_K=spread("clip_low"),
        clip_high_K=spread("clip_high"),
        ref_logprobs_K=logprobs.detach() + torch.where(number == 2, math.log(reference), 0.0),
    )  # fmt: skip
    value = loss(batch).loss
    (grad,) = torch.autograd.grad(-value, logprobs)
    return -value.item(), grad.tolist()


def test_pivotrl_is_the_mean_over_all_actions_and_its_kl_acts_at_states_of_equal_reward() -> None:
    """Eq. 7 with w = 0.75, 2, 1, 1: min(0.75, 0.8) = 0.75 and min(-2, -1.2) = -2. At the third action pi_0 = 2 pi at
    both tokens, so the estimate of its KL is k3 = 2 (2 - 1 - ln 2). The derivative of w k3 by the log-prob of one of its
    tokens, at w = 1, is k3 + (1 - pi_0 / pi) = k3 - 1.
    """
    rewards = [{"total": [1.0, 0.0]}, {"total": [1.0, 1.0]}]
    k3 = 2 * (1 - math.log(2))
    value, grad = objective("pivotrl", rewards, 2.0)
    assert value == pytest.approx((0.75 - 2 - 0.2 * k3) / 4)
    third = -0.2 * (k3 - 1) / 4
    assert grad == pytest.approx([0.75 / 4, 0.75 / 4, -2 / 4, third, third, 0])
    dropped, grad = objective("pivotrl", rewards, 2.0, "advantage.zero_variance=drop")
    assert dropped == pytest.approx((0.75 - 2) / 2) and grad[3:] == [0, 0, 0]


def test_awpo_clips_the_ratio_of_the_whole_response_and_averages_over_all_groups() -> None:
    """Eq. 25 and Algorithm 1. The judge is silent, so w = 0 and the radius is e_max = 0.2. The mean outcomes 0.5 and 2
    give d = 1.5 and 0.5. The first response has r = 0.75, although its first token alone (1.5) would be cut.
    """
    silent = [math.nan, math.nan]
    rewards = [{"outcome": [1.0, 0.0], "reasoning": silent}, {"outcome": [2.0, 2.0], "reasoning": silent}]
    value, grad = objective("awpo", rewards)
    assert value == pytest.approx(1.5 * (0.75 - 2) / 4)
    assert grad == pytest.approx([1.5 * 0.75 / 4, 1.5 * 0.75 / 4, 1.5 * -2 / 4, 0, 0, 0])
    by_token, grad = objective("awpo", rewards, 1.0, "loss.ratio=token", "loss.aggregation=seq_mean_token_mean")
    assert by_token == pytest.approx(1.5 * ((1.2 + 0.5) / 2 - 2) / 4) and grad[0] == 0


def test_selective_rollout_sums_over_the_tokens_of_an_episode_without_ratio_and_clip() -> None:
    """Sec. 2.1 and App. C.2: the gradient of the mean over all N = 4 rollouts of A log p(tau)."""
    _, grad = objective("selective", [{"total": [1.0, 0.0]}, {"total": [1.0, 1.0]}])
    assert grad == pytest.approx([1 / 4, 1 / 4, -1 / 4, 0, 0, 0])
