"""The counted work of a rollout against a count over sets of prefixes."""

from __future__ import annotations

import random

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from floor import ModelSize, count, update_operations
from turnwise.rollouts.pack import pack
from turnwise.types import Credit, RolloutTree, State, Task, Turn

SIZE = ModelSize(layers=3, attention=8, kept=10, linear=1000, head=70, width=4)


def grown(seed: int, group: int, turns: int) -> RolloutTree:
    """A group over an alphabet of two, so that paths agree for a while and part; some end early."""
    random_ = random.Random(seed)
    tree = RolloutTree(State("s", Task("toy", "0", "train"), ids=(5, 6, 7)))
    for _ in range(group):
        parent = -1
        for _turn in range(random_.randint(1, turns)):
            action = [random_.randint(0, 1) for _ in range(random_.randint(1, 4))]
            if parent >= 0:
                tree.turns[parent].observation_ids = [8]
            tree.turns.append(Turn(parent, action, [0.0] * len(action)))
            parent = len(tree.turns) - 1
    return tree


def brute(tree: RolloutTree) -> tuple[float, float, int]:
    """Bytes, operations and steps by enumerating prefixes."""
    paths = []
    for leaf in tree.leaves():
        ids, actions = list(tree.state.ids), []
        for i in tree.path(leaf):
            actions.append((len(ids), len(tree.turns[i].action_ids)))
            ids += tree.turns[i].action_ids + tree.turns[i].observation_ids
        paths.append((ids[:-1], actions))
    prefixes = {tuple(ids[: n + 1]) for ids, _ in paths for n in range(len(ids))}
    operations = sum(2 * SIZE.linear + 4 * SIZE.layers * SIZE.attention * len(p) for p in prefixes)
    read = steps = 0
    for turn in range(max(len(actions) for _, actions in paths)):
        active = [(ids, actions[turn]) for ids, actions in paths if turn < len(actions)]
        most = max(tokens for _, (_, tokens) in active)
        steps += most
        for step in range(most):
            contexts = {tuple(ids[: before + step]) for ids, (before, tokens) in active if step < tokens}
            read += len({c[: n + 1] for c in contexts for n in range(len(c))})
            operations += 2 * SIZE.head * len(contexts)
    numbers = (SIZE.linear + SIZE.head) * steps + SIZE.layers * SIZE.kept * (read + len(prefixes))
    return float(numbers * SIZE.width), float(operations), steps


@pytest.mark.parametrize("seed", range(8))
def test_equals_enumeration(seed: int) -> None:
    tree = grown(seed, group=5, turns=3)
    found = count([tree], SIZE)
    assert (found.bytes, found.operations, found.steps) == brute(tree)
    assert found.step_bytes == found.bytes / found.steps


@pytest.mark.parametrize("tied", [True, False])
def test_sizes_of_a_model(tied: bool) -> None:
    config = Qwen3Config(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=6, tie_word_embeddings=tied,
    )  # fmt: skip
    size = ModelSize.of(Qwen3ForCausalLM(config))
    projections = 16 * 24 + 2 * 16 * 12 + 24 * 16 + 3 * 16 * 24
    norms = 2 * 16 + 2 * 6
    assert (size.layers, size.attention, size.kept, size.head, size.width) == (2, 24, 24, 800, 4)
    assert size.linear == 2 * (projections + norms) + 16  # and the last norm


def test_operations_of_an_update() -> None:
    tree = RolloutTree(State("s", Task("toy", "0", "train"), ids=(5, 6, 7)))
    tree.turns = [Turn(-1, [1, 2], [0.0] * 2), Turn(-1, [3, 4], [0.0] * 2)]
    update = pack([tree], [Credit([1.0, -1.0], [1.0, 1.0])])
    tokens, depths, predicted = 3 + 2 * 2, 1 + 2 + 3 + 2 * (4 + 5), 4
    expected = 4 * SIZE.linear * tokens + 12 * SIZE.layers * SIZE.attention * depths + 4 * SIZE.head * predicted
    assert update.stored_tokens == tokens
    assert update_operations(update, SIZE) == expected
