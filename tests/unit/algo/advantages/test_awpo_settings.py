"""Settings of AWPO's advantage that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from turnwise.algo.advantages.awpo import Awpo


@pytest.mark.parametrize(
    "options",
    [
        {"gate": "shut"},
        {"epsilon_mix": 0},
        {"tau_low": 1.6},
        {"alpha_base": 2.0},
        {"clip_min": 0.3},
        {"eps": -1},
        {"tolerance": math.nan},
        {"zero_variance": "hide"},
        {"mean_over": "some"},
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Awpo(**options)
