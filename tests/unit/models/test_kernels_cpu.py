"""The operations that numba compiles, against torch's operations of the same forward pass."""

from __future__ import annotations

import pytest
import torch

from turnwise.models import kernels_cpu
from turnwise.models.fast_llama import rotated, scaled


def test_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(7, 33, generator=generator), torch.randn(33, generator=generator)
    torch.testing.assert_close(kernels_cpu.norm(x, weight, 1e-6), scaled(x, weight, 1e-6), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normed", [True, False])
def test_norm_and_rotation(normed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, angle = torch.randn(5, 3, 16, generator=generator), torch.randn(5, 1, 8, generator=generator)
    weight = torch.randn(16, generator=generator) if normed else None
    cos, sin = angle.cos(), angle.sin()
    found = kernels_cpu.rotated(x, cos[:, 0], sin[:, 0], weight, 1e-6)
    wanted = rotated(x if weight is None else scaled(x, weight, 1e-6), cos, sin)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
