"""Frequencies that the library would choose by the longest position of a pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.random_models import against_paths, small_config, small_model

from turnwise.models.attention import use_tree_attention
from turnwise.models.policy import plain_copy

FIRST = 64  # tokens of the original training


def long_phi() -> Any:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
    }
    return small_model(small_config("phi3", rope_parameters=rope, original_max_position_embeddings=FIRST))


def test_longrope_is_the_models_own_on_paths_of_its_side() -> None:
    long, short = torch.arange(2 * FIRST)[None], torch.arange(FIRST // 2)[None]
    own_long, own_short = (long_phi()(ids).logits for ids in (long, short))
    model = use_tree_attention(long_phi(), longest=2 * FIRST)
    torch.testing.assert_close(model(long).logits, own_long, rtol=1e-4, atol=1e-4)
    assert (model(short).logits - own_short).abs().max() > 0.1  # every token is turned by the long factors
    torch.testing.assert_close(plain_copy(model)(short).logits, model(short).logits, rtol=1e-4, atol=1e-4)
    for bound in (FIRST, None):
        model = use_tree_attention(long_phi(), longest=bound)
        torch.testing.assert_close(model(short).logits, own_short, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("longest", [FIRST, 4 * FIRST])
def test_trees_of_longrope_are_exact(longest: int) -> None:
    found = against_paths(use_tree_attention(long_phi(), longest))
    assert found.exact, found


def test_dynamic_scaling_is_refused_where_it_would_change() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    config = small_config("llama", rope_parameters=rope)
    use_tree_attention(small_model(config), longest=config.max_position_embeddings)
    with pytest.raises(ValueError, match=r"rollout\.max_length"):
        use_tree_attention(small_model(config), longest=config.max_position_embeddings + 1)
