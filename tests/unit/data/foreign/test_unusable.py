"""Records of other programs that cannot be used, and how a form is recognised."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.data.foreign.test_convert import WEATHER, call

from turnwise.data.foreign import converted
from turnwise.data.read_records import UnusableError


def talk(*said, **more):
    turns = [{"from": who, "value": text} for who, text in zip(("human", "gpt") * len(said), said)]
    return {"conversations": turns, "tools": [WEATHER], **more}


UNUSABLE = {
    "no object": ([1], "no object"),
    "no conversation": ({"text": "x"}, "no messages"),
    "no turn": ({"messages": []}, "no messages"),
    "turn of text": ({"messages": ["hi"]}, "unusable message"),
    "bare turn": ({"messages": [{"text": "x"}]}, "unusable message"),
    "stranger": ({"conversations": [{"from": "narrator", "value": "x"}]}, "unknown role"),
    "role no text": ({"messages": [{"role": ["user"]}]}, "unknown role"),
    "picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "content is not a string",
    ),
    "broken call": (talk("?", '<tool_call>{"name": "weather"</tool_call>'), "call cannot be read"),
    "executable": (talk("?", "[weather(town=__import__('os').getcwd())]"), "call cannot be read"),
    "brackets": (talk("?", "[as (they) say]"), "call cannot be read"),
    "unknown tool": (talk("?", "[rain(town='Ulm')]"), "call does not fit its tool"),
    "wrong type": (talk("?", "[weather(town=1)]"), "call does not fit its tool"),
    "no tools": (talk("?", "<tool_call>{}</tool_call>", tools=None), "call cannot be read"),
    "alternation": (
        {"conversations": [{"from": "human", "value": "x"}] * 2 + [{"from": "gpt", "value": "y"}]},
        "turns do not alternate",
    ),
    "bad schema": (talk("?", "x", tools=[{"name": "f", "parameters": {"properties": [1]}}]), "unusable tools"),
    "tools no list": (talk("?", "x", tools={"a": 1}), "unusable tools"),
    "tools broken": (talk("?", "x", tools="[{"), "broken JSON"),
    "call of a turn": (
        {
            "tools": [WEATHER],
            "conversations": [{"from": "human", "value": "x"}, {"from": "function_call", "value": "f()"}],
        },
        "call cannot be read",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_be_used_says_why(name):
    record, reason = UNUSABLE[name]
    with pytest.raises(UnusableError) as caught:
        converted(record, "x:1")
    assert caught.value.reason == reason
    assert caught.value.what and caught.value.remedy


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("qwen_xml", "<tool_call><function=weather><parameter=town>Ulm</parameter></function></tool_call>"),
        ("llama_json", '{"name": "weather", "parameters": {"town": "Ulm"}}'),
        ("bfcl_python", "[weather(town='Ulm')]"),
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"town": "Ulm"}}</tool_call>'),
    ],
)
def test_every_form_is_recognised(calls, text):
    for asked in ("auto", calls):
        assert converted(talk("?", text), "x:1", asked).messages[1]["tool_calls"] == [call(town="Ulm")]
    assert converted(talk("?", text), "x:1", "none").messages[1]["content"] == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


turns = st.fixed_dictionaries(
    {"from": st.sampled_from(["human", "gpt", "tool", "system", "function_call"]) | json_values, "value": json_values}
) | st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": json_values, "tool_calls": json_values}
)


records = json_values | st.fixed_dictionaries(
    {"conversations": st.lists(turns, max_size=4) | json_values, "tools": json_values, "system": json_values},
)


@given(records)
def test_whatever_a_record_holds_it_is_a_trajectory_or_unusable(record):
    with suppress(UnusableError):
        assert converted(record, "x:1").messages
