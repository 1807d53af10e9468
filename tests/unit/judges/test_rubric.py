"""The scale: nearest tiers, and a version that follows the text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.errors import InputError
from turnwise.judges.rubric import TIERS, WEIGHTS, load_rubric, snap


@pytest.mark.parametrize(
    ("score", "tier"),
    [
        *((1, 1.0), (0.96, 1.0), (0.95, 0.9), (0.83, 0.9), (0.825, 0.75), (0.7, 0.75), (0.63, 0.75), (0.625, 0.5)),
        *((0.38, 0.5), (0.375, 0.25), (0.126, 0.25), (0.125, 0.0), (0, 0.0)),
    ],
)
def test_scores_go_to_the_nearest_tier_and_half_way_to_the_lower(score: float, tier: float) -> None:
    assert snap(score) == tier


@given(st.floats(0, 1))
def test_no_tier_is_nearer(score: float) -> None:
    assert abs(snap(score) - score) <= min(abs(tier - score) for tier in TIERS) + 1e-9


@pytest.mark.parametrize("score", [-0.01, 1.01, math.nan, math.inf])
def test_what_is_no_score_is_refused(score: float) -> None:
    with pytest.raises(ValueError, match="score must be in"):
        snap(score)


def test_the_text_states_the_weights_and_the_tiers() -> None:
    rubric = load_rubric("tool_use_v1")
    for tier in TIERS:
        assert f"\n{tier:.2f}  " in rubric.text
    for weight in WEIGHTS.values():
        assert f", {100 * weight:.0f} points:" in rubric.text
    assert sum(WEIGHTS.values()) == pytest.approx(1)


def test_the_version_names_the_text() -> None:
    name, _, digest = load_rubric("tool_use_v1").version.partition("-")
    assert name == "tool_use_v1"
    assert len(digest) == 8


def test_an_unknown_rubric_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'v9'; choose one of tool_use_v1"):
        load_rubric("v9")
