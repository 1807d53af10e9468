"""How fast an engine writes, by hand."""

from __future__ import annotations

import pytest

from turnwise.planning.decoding_pace import Pace


def test_a_request_has_half_of_its_rate_where_the_curve_says() -> None:
    pace = Pace.halving(100, 40)
    assert pace.seconds(40) == pytest.approx(2 / 100)
    assert pace.seconds(120) == pytest.approx(4 / 100)  # beyond the last point
    assert pace.throughput(40) == pytest.approx(2000)
    assert pace.throughput(1e9) == pytest.approx(100 * 40, rel=1e-6)  # the limit


def test_a_single_point_is_a_constant_rate() -> None:
    assert Pace([(1, 50)]).seconds(1) == Pace([(1, 50)]).seconds(1000) == 1 / 50


def test_between_measured_points_a_step_grows_evenly() -> None:
    pace = Pace([(1, 100), (11, 50), (21, 40)])
    assert pace.seconds(6) == pytest.approx((0.01 + 0.02) / 2)
    assert pace.seconds(16) == pytest.approx((0.02 + 0.025) / 2)
    assert pace.seconds(31) == pytest.approx(0.03)
    assert pace.seconds(0.2) == pytest.approx(0.01)  # fewer than one count as one


@pytest.mark.parametrize("points", [[], [(1, 0)], [(-1, 5)], [(2, 5), (1, 4)], [(1, 5), (2, 6)], [(1, float("inf"))]])
def test_an_impossible_curve_is_refused(points) -> None:
    with pytest.raises(ValueError, match=r"point|rate"):
        Pace(points)
