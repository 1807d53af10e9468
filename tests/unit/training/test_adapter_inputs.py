"""In mixed precision, the inputs of LoRA layers keep their dtype, and the gradients stay those of PEFT's own casts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from turnwise.algo.advantages.advantage import spread
from turnwise.algo.losses.clipped import Clipped
from turnwise.config.settings import UpdateSettings
from turnwise.models.attention import use_tree_attention
from turnwise.rollouts.pack import Update, pack
from turnwise.training.module import PolicyModule, recomputing
from turnwise.types import RolloutTree, State, Task, Turn


def update() -> Update:
    rng = random.Random(0)
    tree = RolloutTree(State("s", Task("toy", "0", "train"), tuple(rng.randrange(6, 97) for _ in range(9))))
    tree.turns = [Turn(-1, [rng.randrange(6, 97) for _ in range(4)], [-4.5] * 4) for _ in range(2)]
    return pack([tree], [spread(tree, {0: 1.0, 1: -1.0})])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_are_equal_and_inputs_are_not_cast(
    autocast: bool, recompute: bool, make_model: Callable[..., Any]
) -> None:
    model = make_model("qwen3", lora=True)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # a new adapter has zeros here, and then lora_A has no gradient
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(len(name)))
        elif not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)  # as conf/policy/qwen3_*.yaml
    use_tree_attention(model)
    seen: set[torch.dtype] = set()
    for name, part in model.named_modules():
        if name.endswith("lora_A.default"):
            part.register_forward_pre_hook(lambda _, inputs: seen.add(inputs[0].dtype))
    module, work = PolicyModule(model, Clipped(), UpdateSettings(1e-4, recompute=recompute)), update()
    module.manual_backward = lambda loss: loss.backward()  # type: ignore[method-assign]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for batch in work.batches:
            with recomputing(module.recomputed):
                module.loss(module.loss_inputs(batch, work)).loss.backward()
        wanted = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
        assert seen == {torch.float32}
        seen.clear()
        model.zero_grad(set_to_none=True)
        module._add_gradients(work)
    assert seen == {torch.bfloat16 if autocast else torch.float32}
    assert len(wanted) > 10
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter.grad, wanted[name]), name
