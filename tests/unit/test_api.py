"""The functions of a notebook against the run's own: the same rollouts, the same loss, and refusals."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import turnwise as tw
from turnwise.config.settings import UpdateSettings
from turnwise.errors import InputError
from turnwise.methods.credit import group_advantages
from turnwise.methods.loss import Clipped, surrogate
from turnwise.rollouts.episodes import run_to_end
from turnwise.training.policy_module import PolicyModule


@pytest.fixture(scope="module")
def policy() -> tw.Policy:
    return tw.load_policy("tiny")


@pytest.fixture(scope="module")
def world() -> tw.World:
    return tw.make_env("household", "env.horizon=4")


def test_a_loss_of_a_notebook_is_the_runs(policy: tw.Policy, world: tw.World) -> None:
    states = tw.states(policy, world, 2, of="expert")[:6]
    trees = tw.play(policy, world, states, group_size=6, turns=1, temperature=0.7)
    again = tw.play(policy, world, states, group_size=6, turns=1, temperature=0.7)
    assert [[turn.action_ids for turn in tree.turns] for tree in trees] == [
        [turn.action_ids for turn in tree.turns] for tree in again
    ]
    assert tw.rewards(trees[0])["total"] == [turn.info["functional"] for turn in trees[0].turns]
    update = tw.pack(trees, [tw.credit.group(tree, tw.rewards(tree)) for tree in trees], row_tokens=256)
    logprobs = policy.logprobs(update, temperature=0.7)
    options = {"ratio": "action", "clip_low": 0.1, "aggregation": "turn_mean_token_mean"}
    ours = tw.loss.clipped(logprobs, update, **options)
    module = PolicyModule(policy.base.model, Clipped(**options), UpdateSettings(learning_rate=1e-3), temperature=0.7)
    theirs = sum(module.loss(module.loss_inputs(batch, update)).loss for batch in update.batches)
    assert len(update.batches) > 0 and ours.requires_grad
    torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-5)
    for batch, each in zip(update.batches, logprobs, strict=True):
        torch.testing.assert_close(each.detach(), batch.items.old_logprob_K, atol=1e-4, rtol=0)


def test_plain_functions_by_hand() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 1.0], eps=0.0) == [1.0, -1.0, -1.0, 1.0]
    assert group_advantages([2.0, 0.0, 1.0], scale=False) == [1.0, -1.0, 0.0]
    assert group_advantages([2.0, 0.0, 1.0], scale=False, baseline="leave_one_out") == [1.5, -1.5, 0.0]
    ratio, advantage = torch.tensor([1.5, 0.5, 1.5, 0.5]), torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert surrogate(ratio, advantage, 0.25, 0.125).tolist() == [-1.125, -0.5, 1.5, 0.75]


def test_rollouts_run_while_the_loop_of_a_notebook_waits() -> None:
    async def inner() -> int:
        await asyncio.sleep(0)
        return 7

    async def cell() -> tuple[int, bool]:
        loop = asyncio.get_running_loop()
        return run_to_end(inner()), asyncio.get_running_loop() is loop

    assert asyncio.run(cell()) == (7, True)


@dataclass
class Mine:
    gamma: float = 0.5


@pytest.mark.parametrize("parts", [{"advantage": Mine}, {"advantage": "mine"}, {"credit": Mine()}])
def test_what_is_no_part_is_refused(parts: dict, policy: tw.Policy, world: tw.World, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=next(iter(parts))):
        tw.train(tw.GRPO(), policy, world, out=tmp_path / "run", **parts)
    assert not (tmp_path / "run").exists()


def test_nothing_slow_is_imported_until_it_is_used() -> None:
    code = "import sys, turnwise; print('torch' in sys.modules); turnwise.PivotRL(k=8); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    assert all(getattr(tw, name) is not None for name in tw.__all__)
    with pytest.raises(AttributeError):
        tw.no_such_function  # noqa: B018
