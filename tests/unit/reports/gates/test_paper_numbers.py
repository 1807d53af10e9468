from __future__ import annotations

import pytest

from turnwise.reports.gates.paper_numbers import Cell, compare, half_up, printed_figures


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.125, 2, "0.13"),
        (0.1249999999999, 2, "0.13"),
        (0.1248, 2, "0.12"),
        (-0.0004, 2, "0.00"),
        (-0.0588, 3, "-0.059"),
        (17393.41, 0, "17393"),
        (100.0, 1, "100.0"),
    ],
)
def test_halves_are_rounded_up(value: float, digits: int, text: str) -> None:
    assert half_up(value, digits) == text


def test_a_figure_agrees_to_its_printed_digit_differs_or_is_missing() -> None:
    found = {
        cell.key: cell
        for cell in compare({"t7": {"15": {"prefix_edit_distance_mean": {"rho": 0.4194, "p": 1.38e-5, "auroc": 0.78}}}})
    }
    assert found["t7/15/prefix_edit_distance_mean/rho"].verdict == "agrees"
    assert found["t7/15/prefix_edit_distance_mean/p"].verdict == "agrees"
    assert found["t7/15/prefix_edit_distance_mean/auroc"] == Cell(
        "t7/15/prefix_edit_distance_mean/auroc", "0.77", "0.78", "differs"
    )
    assert found["t12/random/cut"].verdict == "not in the data"


def test_every_figure_has_a_key_of_its_own() -> None:
    keys = [key for key, _ in printed_figures()]
    assert len(keys) == len(set(keys)) > 150
