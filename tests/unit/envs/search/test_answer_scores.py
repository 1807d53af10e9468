"""Exact match and F1 by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise_worlds.search.retrieval import f1


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("Gita Bauer", "Gita Bauer", 1.0),
        ("the city of Paris", "Paris", 0.5),  # "the" goes: precision 1/3, recall 1
        ("Paris", "Paris, France", 2 / 3),  # precision 1, recall 1/2
        ("red red blue", "red blue blue", 2 / 3),  # words are counted, not looked up
        ("London", "Paris", 0.0),
        ("yes it is", "yes", 0.0),  # a closed answer is whole or nothing
        ("", "Paris", 0.0),
    ],
)
def test_f1_by_hand(answer: str, reference: str, expected: float) -> None:
    assert f1(answer, reference) == pytest.approx(expected)


@given(st.text(max_size=40), st.text(max_size=40))
def test_f1_is_symmetric_and_bounded(a: str, b: str) -> None:
    assert f1(a, b) == pytest.approx(f1(b, a))
    assert 0 <= f1(a, b) <= 1 + 1e-12
