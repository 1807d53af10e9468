"""The operations that numba compiles, against torch's operations of the same forward pass."""

from __future__ import annotations

import numba
import pytest
import torch

from turnwise.models import kernels_cpu
from turnwise.models.fast_llama import rotated, scaled, uses_compiled_kernels


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


def test_used_for_float32_on_one_thread_only() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert uses_compiled_kernels(torch.zeros(1))
        assert not uses_compiled_kernels(torch.zeros(1, dtype=torch.bfloat16))
        torch.set_num_threads(2)
        assert not uses_compiled_kernels(torch.zeros(1))
    finally:
        torch.set_num_threads(before)


def test_a_function_is_compiled_without_a_cache_if_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def refuses(cache: bool = False, **options: object):
        if cache:
            raise RuntimeError("cannot cache function")
        return real(**options)

    monkeypatch.setattr(kernels_cpu, "njit", refuses)
    assert kernels_cpu.compiled(lambda x: x + 1)(1) == 2
