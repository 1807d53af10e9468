"""Attention of decoding steps over the trunk, in bfloat16."""

from __future__ import annotations

import torch

from turnwise.engines.decode_attention import _trunk
from turnwise.models.attention import Rules


def test_weights_over_the_trunk_sum_to_one_in_bfloat16() -> None:
    """Values of one must come out as one; with log-sum-exps in bfloat16 the sum of the weights would be off by per cents."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(3, 2, n, 16, generator=generator).bfloat16() for n in (8, 300))
    bias = torch.zeros(3, 1, 8, 300, dtype=torch.bfloat16)
    capped = Rules(softcap=50.0)  # no kernel of the CPU has a soft cap, so that the computation of a device is run
    out, lse = _trunk(query, key, torch.ones_like(key), bias, capped)
    assert lse.dtype == torch.float32
    assert float((out.float() - 1).abs().max()) < 2**-7  # a rounding step below 1 is 2^-9, and one above it 2^-8
