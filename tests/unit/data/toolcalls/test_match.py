"""Which calls are as good as the demonstrated ones, and which are the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.data.match_calls import match_calls, match_exactly
from turnwise.data.toolcalls import PARSERS, write_calls
from turnwise.types import ToolCall


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
            "required": ["city"],
        },
    },
}
PARIS, ROME = call("weather", city="Paris"), call("weather", city="Rome")


@pytest.mark.parametrize(
    ("made", "expected", "good", "same"),
    [
        ([], [], True, True),
        ([PARIS], [PARIS], True, True),
        ([call("weather", city="Paris ")], [PARIS], True, False),  # outer whitespace
        ([call("weather", city="Paris", days=1)], [PARIS], True, False),  # the schema's default, spelled out
        ([PARIS], [call("weather", city="Paris", days=1.0)], True, False),  # and left out; 1.0 is 1
        ([ROME, PARIS], [PARIS, ROME], True, False),  # side by side, so in any order
        ([PARIS, PARIS], [PARIS, PARIS], True, True),
        # near misses
        ([PARIS, PARIS], [PARIS, ROME], False, False),  # one made call stands for one expected
        ([PARIS], [PARIS, ROME], False, False),
        ([PARIS, ROME], [PARIS], False, False),
        ([call("forecast", city="Paris")], [PARIS], False, False),
        ([call("weather", city="paris")], [PARIS], False, False),
        ([call("weather", city="Paris", days=2)], [PARIS], False, False),
        ([call("weather", city="Paris", days="1")], [PARIS], False, False),  # not of the schema's type
        ([call("weather", days=1)], [PARIS], False, False),
        ([call("weather", city="Paris", days=True)], [PARIS], False, False),
        ([], [PARIS], False, False),
        ([PARIS], [], False, False),
    ],
)
def test_verdicts(made: list[ToolCall], expected: list[ToolCall], good: bool, same: bool) -> None:
    assert match_calls(made, expected, [TOOL]) is good
    assert match_exactly(made, expected) is same


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text("abc \"'\\\n<>", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=2)
    ),
    max_leaves=5,
)
CALLS = st.lists(
    st.builds(ToolCall, st.sampled_from(["f", "g.h"]), st.dictionaries(st.sampled_from(["a", "b"]), VALUES)),
    min_size=1,
    max_size=3,
)


@given(calls=CALLS, form=st.sampled_from(["hermes", "llama_json", "bfcl_python"]))
def test_what_is_written_is_read_back(calls: list[ToolCall], form: Any) -> None:
    assert list(PARSERS[form](write_calls(calls, form)).calls) == calls


@given(calls=CALLS, seed=st.randoms(use_true_random=False))
def test_an_order_is_never_missed_and_a_loss_always_is(calls: list[ToolCall], seed: Any) -> None:
    made = calls[:]
    seed.shuffle(made)
    assert match_calls(made, calls)
    assert not match_calls(made[1:], calls)
