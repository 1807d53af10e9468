from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.rollouts.predictor import Anchor, Prediction, Target, captured, quality

anchors = st.lists(st.builds(Anchor, st.floats(0, 0.25), st.floats(0, 0.25)), min_size=1, max_size=20)


def test_the_first_half_by_hand() -> None:
    # 3 anchors, so 1.5 to serve: all of the first, and half of the second
    ranked = [Anchor(0.1, 0.0), Anchor(0.25, 0.24), Anchor(0.2, 0.16)]
    assert captured(ranked) == pytest.approx((0.24 + 0.16 / 2) / 0.4)
    assert captured(ranked, 1.0) == pytest.approx(1)
    assert captured([Anchor(0.1, 0.0)]) is None and captured([]) is None


def test_a_blind_ranking_finds_half() -> None:
    assert captured([Anchor(0.2, contrast) for contrast in (0.25, 0.0, 0.1)]) == pytest.approx(0.5)


@given(anchors, st.floats(0, 1))
def test_no_ranking_beats_the_contrast_itself_which_beats_a_blind_one(found: list[Anchor], share: float) -> None:
    best = captured([anchor._replace(rank=anchor.contrast) for anchor in found], share)
    other = captured(found, share)
    assert (best is None) == (other is None)
    if best is not None and other is not None:
        assert -1e-9 <= other <= best + 1e-9 and share - 1e-9 <= best <= 1 + 1e-9


def test_what_the_diagnostics_tell() -> None:
    found_below = ((0.9, 0.5, 4), (0.5, 1.0, 9), (0.0, 0.25, 4), (1.0, 0.0, 1))
    roots = [Prediction(value, Target(mean, leaves, 0)) for value, mean, leaves in found_below]
    found = quality(roots, [])
    # V(1 - V) ranks the second (no contrast) and the first (0.25) before the third (3/16)
    assert found["captured_root"] == pytest.approx(0.25 / (0.25 + 3 / 16))
    assert found["captured_root_best"] == pytest.approx(1)
    assert "captured_prefix" not in found
