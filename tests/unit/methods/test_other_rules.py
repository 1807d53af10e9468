"""IGPO, against numbers worked by hand, and the probabilities of answers that it needs."""

from __future__ import annotations

import math

import pytest
import torch
from tests.unit.methods.advantages.trees import flat

import turnwise as tw
from turnwise.methods.turn_rewards import Igpo
from turnwise.rollouts.predictor import AnswerProbability, branchable


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
