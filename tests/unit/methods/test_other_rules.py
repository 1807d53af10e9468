"""IGPO, against numbers worked by hand, and the probabilities of answers that it needs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tests.unit.methods.advantages.trees import flat

import turnwise as tw
from turnwise.errors import InputError
from turnwise.methods.turn_credit import Igpo
from turnwise.rollouts.predictor import AnswerProbability, branchable
from turnwise.types import RolloutTree, State, Task, Turn


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    """Ratios 1.5, 0.5, 1.0, 2.0; advantages 1, 1, 1, -1; each weight is cut at 1.28 from above only."""
    batch = example()
    value, grad = loss_and_grad(Cispo(clip_high=0.28), batch)
    weights, logprobs = [1.28, 0.5, 1.0, 1.28], batch.logprobs_K.tolist()
    signs = [-1, -1, -1, 1]
    assert grad == pytest.approx([s * w / 4 for s, w in zip(signs, weights, strict=True)])
    assert value == pytest.approx(sum(s * w * x / 4 for s, w, x in zip(signs, weights, logprobs, strict=True)))
    cut = {
        name: each.value
        for name, each in Cispo(clip_high=0.28)(batch).metrics.items()
        if "cut" in name or "clip" in name
    }
    assert cut == {"weight_cut_fraction": 0.5, "weight_cut_fraction_low": 0, "weight_cut_fraction_high": 0.5}
    # on the sampler's own weights it is the gradient of PPO's loss
    own = example(logprobs_K=example().old_logprobs_K.clone().requires_grad_())
    again = example(logprobs_K=example().old_logprobs_K.clone().requires_grad_())
    ours, theirs = loss_and_grad(Cispo(), own)[1], loss_and_grad(Clipped(aggregation="token_mean"), again)[1]
    assert ours == pytest.approx(theirs)


def test_gdpo_normalises_each_reward_and_then_the_update() -> None:
    tree, other = flat(1, 1, 1, 1), flat(1, 1)
    rewards = {"outcome": [1.0, 0.0, 0.0, 1.0], "reasoning": [0.9, 0.9, 0.1, 0.1]}  # by group: 1 -1 -1 1 and 1 1 -1 -1
    exact = {"eps": 0.0, "batch_norm": False}
    assert Gdpo(**exact)(tree, rewards).advantage == pytest.approx([2, 0, -2, 0])
    assert Gdpo({"outcome": 1.0, "reasoning": 0.5}, **exact)(tree, rewards).advantage == pytest.approx(
        [1.5, -0.5, -1.5, 0.5]
    )
    # adding first sees one number, 1.9, 0.9, 0.1, 1.1, whatever the scales of the two
    added = GroupAdvantage(eps=0.0)(tree, {"total": [1.9, 0.9, 0.1, 1.1]}).advantage
    assert added[1] != pytest.approx(0) and added[0] != pytest.approx(2)
    # over an update of two groups: sums 2 0 -2 0 and 2 -2 (the second group's reasoning does not vary), std sqrt(16 / 6)
    second = {"outcome": [1.0, 0.0], "reasoning": [0.5, 0.5]}
    credits = Gdpo(eps=0.0).over([tree, other], [rewards, second], {}).credits
    norm = math.sqrt((4 + 4 + 1 + 1) / 6)
    assert credits[0].advantage == pytest.approx([2 / norm, 0, -2 / norm, 0])
    assert credits[1].advantage == pytest.approx([1 / norm, -1 / norm])


def test_greso_passes_over_states_whose_groups_were_equal() -> None:
    """Two easy groups, a hard one and a mixed one of four states; targets 1/12 and 1/6 are passed by 1/2 and 1/4."""
    names = ["a", "b", "c", "d"]
    trees = [replace(flat(1, 1), state=replace(flat(1, 1).state, id=name)) for name in names]
    rewards = [{"total": list(pair)} for pair in ([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0])]
    first = Greso().over(trees, rewards, {})
    known = {"z/a": 1, "z/b": 1, "z/c": -1, "z/d": 0, "p_easy": 0.5, "p_hard": 0.5}  # no state was known before
    assert first.memory == known
    assert [any(credit.weight) for credit in first.credits] == [False, False, False, True]
    # again: a is easy twice in a row, b has become hard, c is mixed, d is easy; easy 1/2 and hard 1/4 lower both p
    again = [{"total": list(pair)} for pair in ([1.0, 1.0], [0.0, 0.0], [0.0, 1.0], [1.0, 1.0])]
    second = Greso().over(trees, again, first.memory).memory
    assert second == pytest.approx({"z/a": 2, "z/b": -1, "z/c": 0, "z/d": 1, "p_easy": 0.49, "p_hard": 0.49})
    # a state that a refill draws again counts twice
    assert Greso().over([trees[0]] * 2, [{"total": [1.0, 1.0]}] * 2, {}).memory["z/a"] == 2
    # only mixed groups: both rise
    mixed = Greso().over(trees, [{"total": [0.0, 1.0]}] * 4, second).memory
    assert mixed["p_easy"] == mixed["p_hard"] == pytest.approx(0.5)
    states = [tree.state for tree in trees]
    counts = Counter(state.id for seed in range(4000) for state in Greso().chosen(states, second, seed))
    assert counts["c"] == 4000
    for name, share in (("a", 0.49**2), ("b", 0.49), ("d", 0.49)):
        assert counts[name] / 4000 == pytest.approx(share, abs=0.03)
    far = {"z/a": 50.0, "p_easy": 0.5}
    assert 10 < sum(len(Greso().chosen([*states[:2]], far, seed)) - 1 for seed in range(4000)) < 90  # 1 % of 4000


def values(*of_tree: float):
    return lambda trees: [list(of_tree) for _ in trees]


def test_information_gain() -> None:
    """Two rollouts of two turns: the first raises p from 0.2 to 0.6 and wins, the second lowers it to 0.1 and loses."""
    tree, total = flat(2, 2), {"total": [1.0, 0.0]}
    rule = Igpo(values(0.2, 0.6, 0.0, 0.1, 0.0), eps=0.0)
    rewards = [0.4, 1.0, -0.1, 0.0]
    centre = sum(rewards) / 4
    norm = math.sqrt(sum((r - centre) ** 2 for r in rewards) / 4)
    z = [(r - centre) / norm for r in rewards]
    assert rule(tree, total).advantage == pytest.approx([z[0] + z[1], z[1], z[2] + z[3], z[3]])
    half = Igpo(values(0.2, 0.6, 0.0, 0.1, 0.0), eps=0.0, gamma=0.5)
    assert half(tree, total).advantage == pytest.approx([z[0] + z[1] / 2, z[1], z[2] + z[3] / 2, z[3]])
    logs = Igpo(values(0.2, 0.6, 0.0, 0.1, 0.0), eps=0.0, gain="log")(tree, total).advantage
    assert (logs[0] - logs[1]) - (logs[2] - logs[3]) > 0 and logs != pytest.approx(rule(tree, total).advantage)
    same = Igpo(values(0.5, 0.5, 0.5))
    assert same(flat(1, 1), {"total": [1.0, 1.0]}).weight == [0, 0]


def test_the_probability_of_the_answer_is_the_models_own() -> None:
    """Against a forward pass of the plain model over each whole history and answer."""
    policy, world = tw.load_policy("tiny"), tw.make_env("search", "policy=tiny")
    trees = tw.play(policy, world, tw.states(policy, world, 2), group_size=3)
    found = AnswerProbability(policy.base.model, policy.base.chat, world.env, row_tokens=512)(trees)
    for tree, of_tree in zip(trees, found, strict=True):
        answer = policy.base.chat.action(world.env.solution(tree.state.task) or "")[:-1]
        places = branchable(tree)
        assert len(of_tree) == 1 + len(tree.turns)
        for place in range(-1, len(tree.turns)):
            if place not in places:
                assert of_tree[place + 1] == 0
                continue
            ids = torch.tensor([[*tree.history(place), *answer]])
            with torch.no_grad():
                logits = policy.base.model(input_ids=ids).logits.log_softmax(-1)[0, -len(answer) - 1 : -1]
            expected = math.exp(float(logits[torch.arange(len(answer)), torch.tensor(answer)].mean()))
            assert of_tree[place + 1] == pytest.approx(expected, rel=1e-3)
