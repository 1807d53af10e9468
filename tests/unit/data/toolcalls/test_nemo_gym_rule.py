"""The argument comparison under which pivot rows are verified."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.data.match_calls import match_by_nemo_gym, same_call
from turnwise.data.toolcalls import Reply
from turnwise.types import ToolCall


def call(value: Any, name: str = "f") -> ToolCall:
    return ToolCall(name, {"a": value})


def reply(*calls: ToolCall, text: str = "") -> Reply:
    return Reply("", text, calls)


@pytest.mark.parametrize(
    ("made", "expected", "same"),
    [
        (1, 1, True),
        (1, 2, False),
        (1, 1.0, False),
        (1.0, 1, False),
        (1.0 + 5e-7, 1.0, True),
        (1.0 + 2e-6, 1.0, False),
        (None, None, True),
        ("1", 1, False),
        (1, True, False),
        ([1, 2], [1, 2], True),
        ([2, 1], [1, 2], False),
        ([1], [1, 2], False),
        ({"x": 1}, {"x": 1}, True),
        ({"x": 1, "y": 2}, {"x": 1}, False),
        ({"x": ["one two", 3]}, {"x": ["two one", 3]}, True),
        ("word", "Word", False),  # fewer than two words: the same text
        ("word ", "word", False),
        ("word and more", "word", False),
        ("Refund the order", "refund the order", True),
        ("three words here", "none of those", False),
    ],
)
def test_values_are_compared_by_type_structure_and_words(made: Any, expected: Any, same: bool) -> None:
    assert same_call(call(made), call(expected), 0.1) is same


def test_each_expected_call_needs_a_made_call_of_its_own_and_more_are_free() -> None:
    one, two = call("a b c"), call("a b d")
    assert match_by_nemo_gym(reply(two, one), reply(one, two), 0.5)
    assert match_by_nemo_gym(reply(one, call(1), text="so"), reply(one), 0.5)
    assert not match_by_nemo_gym(reply(one), reply(one, one), 0.5)
    assert not match_by_nemo_gym(reply(one, one), reply(one, two), 0.5)


def test_a_made_call_is_left_to_the_expected_call_that_has_no_other() -> None:
    wide, narrow = call("a b c z"), call("c d q q")
    made = reply(call("a b c d"), call("a b z z"))  # the first fits both, the second ``wide`` alone
    assert match_by_nemo_gym(made, reply(wide, narrow), 0.25) and match_by_nemo_gym(made, reply(narrow, wide), 0.25)
    assert not match_by_nemo_gym(made, reply(narrow, narrow), 0.25)
