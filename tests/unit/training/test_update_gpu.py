"""Updates on a CUDA device: their gradients are those of the CPU, with recomputation and offloading too."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from math import isqrt
from typing import Any

import pytest
import torch

from turnwise.config.settings import UpdateSettings
from turnwise.methods.credit import spread
from turnwise.methods.loss import Clipped
from turnwise.models.attention import use_tree_attention
from turnwise.models.logprobs import LARGE
from turnwise.rollouts.pack import Update, pack
from turnwise.training.policy_module import PolicyModule, recomputing
from turnwise.types import RolloutTree, State, Task, Turn

MakeModel = Callable[..., Any]
HOW = {"stored": (False, False), "recompute": (True, False), "offload": (True, True)}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def update(state: int) -> Update:
    """Two trees that branch twice, behind a state of ``state`` tokens, packed into one row."""
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(6, 97) for _ in range(count)]

    trees = []
    for number in range(2):
        tree = RolloutTree(State(str(number), Task("toy", str(number), "train"), tuple(tokens(state))))
        for parent in (-1, -1, 0, 0):
            action = tokens(5)
            tree.turns.append(Turn(parent, action, [-4.5] * len(action), observation_ids=tokens(3)))
        trees.append(tree)
    credits = [spread(tree, {leaf: float(leaf) - 2 for leaf in tree.leaves()}) for tree in trees]
    return pack(trees, credits, row_tokens=1 << 20, batch_tokens=1 << 20)


def gradients(model: Any, work: Update, recompute: bool = False, offload: bool = False) -> dict[str, torch.Tensor]:
    device = next(model.parameters()).device
    module = PolicyModule(model, Clipped(), UpdateSettings(1e-4, recompute=recompute, offload=offload)).to(device)
    for batch in work.batches:
        with recomputing(module.recomputed):
            module.loss(module.loss_inputs(batch, work)).loss.backward()
    return {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("state", [40, isqrt(LARGE)], ids=["dense mask", "blocks"])
def test_gradients_are_those_of_the_cpu(make_model: MakeModel, state: int, how: str) -> None:
    model = make_model("qwen3", True, head=16)  # the kernel of attention in blocks needs 16 dimensions
    use_tree_attention(model.get_base_model())
    on_cuda = copy.deepcopy(model).to("cuda")
    work = update(state)
    expected, found = gradients(model, work), gradients(on_cuda, work, *HOW[how])
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert expected.keys() == found.keys() and largest > 0
    for name, gradient in expected.items():
        # the matrix products of attention in blocks may use tf32
        torch.testing.assert_close(found[name], gradient, atol=5e-3 * largest, rtol=5e-3, msg=name)
