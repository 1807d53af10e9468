"""The conformance suite finds planted faults, each by a case that names it, and passes what is right."""

from __future__ import annotations

import importlib.util
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from turnwise.conformance import CASES, faults, main
from turnwise.methods.credit import group_advantages
from turnwise.methods.loss import surrogate


def by_group(rewards: Sequence[float], groups: Sequence[Any], of: Callable[[list[float]], list[float]]) -> list[float]:
    places = defaultdict(list)
    for place, group in enumerate(groups):
        places[group].append(place)
    found = [0.0] * len(rewards)
    for own in places.values():
        for place, value in zip(own, of([rewards[i] for i in own]), strict=True):
            found[place] = value
    return found


def ours(rewards: Sequence[float], groups: Sequence[Any]) -> list[float]:
    return by_group(rewards, groups, lambda own: group_advantages(own) if len({*own}) > 1 else [0.0] * len(own))


def sample_std(rewards: Sequence[float], groups: Sequence[Any]) -> torch.Tensor:
    def of(own: list[float]) -> list[float]:
        spread = statistics.stdev(own) if len(own) > 1 else 0.0
        return [(reward - statistics.mean(own)) / (spread + 1e-4) for reward in own]

    return torch.tensor(by_group(rewards, groups, of))[:, None]


def unscaled(rewards: Sequence[float], groups: Sequence[Any]) -> list[float]:
    return by_group(rewards, groups, lambda own: [reward - statistics.mean(own) for reward in own])


@pytest.mark.parametrize("rule", [ours, sample_std, unscaled])
def test_right_advantages_pass_whatever_their_scale(rule: Any) -> None:
    assert faults("advantage", rule) == {}


def loss_of(logprobs: Any, old: Any, advantages: Any, mask: Any, sign: float = 1.0) -> Any:
    ratio = torch.where(mask > 0, logprobs - old, 0.0).exp()
    loss = surrogate(ratio, advantages[:, None].expand_as(ratio), 0.2, 0.2)
    return sign * (loss * mask).sum() / mask.sum().clamp(min=1)


def step_rule(rewards: Sequence[float], groups: Sequence[Any], rollouts: Sequence[Any]) -> list[float]:
    first = {rollout: place for place, rollout in reversed([*enumerate(rollouts)])}
    places = [*first.values()]
    of_rollout = dict(zip(first, ours([rewards[i] for i in places], [groups[i] for i in places]), strict=True))
    return [of_rollout[rollout] for rollout in rollouts]


def mask_of(turns: Sequence[tuple[str, int]]) -> list[int]:
    return [int(role == "assistant") for role, count in turns for _ in range(count)]


def test_right_losses_steps_and_masks_pass() -> None:
    assert faults("loss", loss_of) == {} and faults("steps", step_rule) == {} and faults("mask", mask_of) == {}


def batch_mean(rewards: Sequence[float], groups: Sequence[Any]) -> list[float]:
    return [reward - statistics.mean(rewards) for reward in rewards]


def by_place(rewards: Sequence[float], groups: Sequence[Any]) -> list[float]:
    rows = torch.tensor(rewards, dtype=torch.float64).view(-1, 4)
    return ((rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-6)).flatten().tolist()


def std_of_one(rewards: Sequence[float], groups: Sequence[Any]) -> list[float]:
    def of(own: list[float]) -> list[float]:
        row = torch.tensor(own, dtype=torch.float64)
        return ((row - row.mean()) / (row.std() + 1e-6)).tolist()

    return by_group(rewards, groups, of)


def no_eps(rewards: Sequence[float], groups: Sequence[Any]) -> list[float]:
    def of(own: list[float]) -> list[float]:
        row = torch.tensor(own, dtype=torch.float64)
        return ((row - row.mean()) / row.std(correction=0)).tolist()

    return by_group(rewards, groups, of)


def over_steps(rewards: Sequence[float], groups: Sequence[Any], rollouts: Sequence[Any]) -> list[float]:
    return ours(rewards, groups)


def last_step(rewards: Sequence[float], groups: Sequence[Any], rollouts: Sequence[Any]) -> list[float]:
    found = step_rule(rewards, groups, rollouts)
    return [value if rollouts[i] not in rollouts[i + 1 :] else 0.0 for i, value in enumerate(found)]


def inverted(logprobs: Any, old: Any, advantages: Any, mask: Any) -> Any:
    return loss_of(logprobs, old, advantages, 1 - mask)


def maximum(logprobs: Any, old: Any, advantages: Any, mask: Any) -> Any:
    ratio, a = (logprobs - old).exp(), advantages[:, None]
    return -((ratio * a).maximum(ratio.clamp(0.8, 1.2) * a) * mask).sum() / mask.sum()


def over_padding(logprobs: Any, old: Any, advantages: Any, mask: Any) -> Any:
    ratio, a = torch.where(mask > 0, logprobs - old, 0.0).exp(), advantages[:, None]
    return -((ratio * a).minimum(ratio.clamp(0.8, 1.2) * a) * mask).mean()


def rows_without_tokens(logprobs: Any, old: Any, advantages: Any, mask: Any) -> Any:
    ratio, a = torch.where(mask > 0, logprobs - old, 0.0).exp(), advantages[:, None]
    return -(((ratio * a).minimum(ratio.clamp(0.8, 1.2) * a) * mask).sum(1) / mask.sum(1)).mean()


def last_turn(turns: Sequence[tuple[str, int]]) -> list[int]:
    return [int(place == len(turns) - 1) for place, (_, count) in enumerate(turns) for _ in range(count)]


@pytest.mark.parametrize(
    ("kind", "wrong", "case"),
    [
        ("advantage", lambda rewards, groups: [-x for x in ours(rewards, groups)], "direction"),
        ("advantage", batch_mean, "baseline"),
        ("advantage", by_place, "interleaved groups"),
        ("advantage", std_of_one, "one sample"),
        ("advantage", no_eps, "equal rewards"),
        ("steps", over_steps, "rollouts, not steps"),
        ("steps", last_step, "every step"),
        ("loss", inverted, "mask"),
        ("loss", maximum, "clipped from above"),
        ("loss", over_padding, "padding"),
        ("loss", rows_without_tokens, "a row without tokens"),
        ("mask", last_turn, "every turn"),
    ],
)
def test_planted_faults_are_found(kind: str, wrong: Any, case: str) -> None:
    found = faults(kind, wrong)
    assert case in found, found
    assert len(found) < len(CASES[kind])  # and what is right about it passes


def test_verls_group_advantage_passes() -> None:
    if importlib.util.find_spec("verl") is None:
        pytest.skip("verl is not installed")
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    def verls(rewards: Sequence[float], groups: Sequence[Any]) -> Any:
        import numpy as np

        scores = torch.tensor(rewards)[:, None]
        return compute_grpo_outcome_advantage(scores, torch.ones_like(scores), np.array(groups, dtype=object))[0]

    assert faults("advantage", verls).keys() <= {"one sample"}  # verl gives a sample of its own its reward


def test_the_program(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "their_rules.py").write_text(
        "def good(turns):\n    return [int(role == 'assistant') for role, n in turns for _ in range(n)]\n"
        "def bad(turns):\n    return [int(role != 'assistant') for role, n in turns for _ in range(n)]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["their_rules:good", "--kind", "mask"]) == 0 and main(["their_rules:bad", "--kind", "mask"]) == 1
    assert "not inverted" in capsys.readouterr().out
    assert main(["their_rules:absent"]) == 2 and main(["no_such_module:f"]) == 2
