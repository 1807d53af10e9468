"""Trees of random tokens, and critics of random weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from turnwise.models.attention import backbone, use_tree_attention
from turnwise.rollouts.predictor import Critic
from turnwise.types import RolloutTree, State, Task, Turn


def tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(6, 97) for _ in range(count))


@pytest.fixture
def grown() -> Callable[..., RolloutTree]:
    """A tree of given parents over random tokens; leaves end their episodes."""

    def tree(name: str, *parents: int, state: tuple[int, ...] = ()) -> RolloutTree:
        rng = random.Random(name)
        found = RolloutTree(State(name, Task("toy", name, "train"), state or tokens(rng, 9)))
        for i, parent in enumerate(parents):
            action = list(tokens(rng, 3))
            seen = list(tokens(rng, 4)) if i in parents else []
            found.turns.append(Turn(parent, action, [-1.0] * 3, observation_ids=seen))
        return found

    return tree


@pytest.fixture
def critic(make_model: Callable[..., Any]) -> Callable[..., Critic]:
    """A critic over a random model's transformer, with a head that is not zero unless asked."""

    def build(kind: str = "qwen3", head: float = 0.1, **options: Any) -> Critic:
        model = make_model(kind, False)
        use_tree_attention(model)
        built = Critic(backbone(model), **options)
        torch.nn.init.normal_(built.head.weight, std=head)
        return built

    return build
