from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.predictors.contrast import Anchor, captured
from turnwise.predictors.quality import Prediction, quality
from turnwise.predictors.targets import Target

anchors = st.lists(
    st.builds(Anchor, st.floats(0, 0.25), st.floats(0, 0.25), st.integers(1, 8)), min_size=1, max_size=20
)


def test_half_of_the_budget_by_hand() -> None:
    # 8 rollouts, so 4 to spend: all 3 of the first, and 1 of the 2 of the second
    ranked = [Anchor(0.1, 0.0, 3), Anchor(0.25, 0.24, 3), Anchor(0.2, 0.16, 2)]
    assert captured(ranked) == pytest.approx((0.24 + 0.16 / 2) / 0.4)
    assert captured(ranked, 1.0) == pytest.approx(1)
    assert captured([Anchor(0.1, 0.0, 3)]) is None


def test_a_blind_ranking_finds_half() -> None:
    assert captured([Anchor(0.2, c, k) for c, k in ((0.25, 1), (0.0, 5), (0.1, 2))]) == pytest.approx(0.5)


@given(anchors, st.floats(0, 1))
def test_no_ranking_of_equal_budgets_beats_the_contrast_itself(found: list[Anchor], share: float) -> None:
    even = [anchor._replace(budget=4) for anchor in found]
    best = captured([anchor._replace(rank=anchor.contrast) for anchor in even], share)
    other = captured(even, share)
    assert (best is None) == (other is None)
    if best is not None and other is not None:
        assert -1e-9 <= other <= best + 1e-9 and best >= share - 1e-9 and best <= 1 + 1e-9


def test_what_the_diagnostics_tell() -> None:
    roots = [Prediction(v, Target(mean, 4, 0)) for v, mean in ((0.9, 0.5), (0.5, 1.0), (0.0, 0.25), (1.0, 0.0))]
    found = quality(roots, [])
    # V(1 - V) ranks the second (no contrast) and the first (0.25) before the third (3/16)
    assert found["captured_root"] == pytest.approx(0.25 / (0.25 + 3 / 16))
    assert found["captured_root_best"] == pytest.approx(1)
    assert "captured_prefix" not in found
