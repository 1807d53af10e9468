"""Sums over segments, such as the tokens of each turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is slow to import, and a configuration is checked without it
    from torch import Tensor


def segment_sum(values_K: Tensor, segment_K: Tensor) -> Tensor:
    """Returns, for each token, the sum (K,) of the values of all tokens in the same segment.

    Args:
        values_K: floating-point values (K,). The sums are differentiable in them.
        segment_K: integer segment ids (K,) in any order, not necessarily consecutive.
    """
    ids, inverse_K = segment_K.unique(return_inverse=True)
    return values_K.new_zeros(len(ids)).index_add(0, inverse_K, values_K)[inverse_K]
