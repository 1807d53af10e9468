"""The tree engine on a CPU with a model in bfloat16 or float16, against the same weights in float32."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.unit.engines.test_tree_gpu import histories_of, turns, worst_difference


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("packing", "threads")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["qwen3", "llama", "unknown"])
def test_logprobs_stay_near_those_of_float32(make_model: Callable[..., Any], kind: str, dtype: torch.dtype) -> None:
    model = make_model(kind, False).to(dtype)
    if kind == "unknown":
        model.config.model_type = "unheard_of"  # so that it uses its own forward pass, and stores keys in its own dtype
    assert worst_difference(copy.deepcopy(model).float(), turns(model, histories_of(random.Random(2)))) < 0.1
