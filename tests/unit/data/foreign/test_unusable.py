"""Records of other programs that cannot be used, and how a form is recognised."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.data.foreign.test_convert import WEATHER, call

from turnwise.data.foreign import Importer, converted
from turnwise.data.read_records import UnusableError


def talk(*said, **more):
    turns = [{"from": who, "value": text} for who, text in zip(("human", "gpt") * len(said), said)]
    return {"conversations": turns, "tools": [WEATHER], **more}


UNUSABLE = {
    "no object": ([1], "no object", "must be a JSON object, but it is of type list"),
    "no conversation": ({"text": "x"}, "no messages", "no conversation, only the keys ['text']"),
    "no turn": ({"messages": []}, "no messages", "messages must be a non-empty list"),
    "turn of text": ({"messages": ["hi"]}, "unusable message", "messages[0] must be an object with a role, got str"),
    "bare turn": ({"messages": [{"text": "x"}]}, "unusable message", "a role, got only the keys ['text']"),
    "stranger": ({"conversations": [{"from": "narrator", "value": "x"}]}, "unknown role", "unknown role 'narrator'"),
    "role no text": ({"messages": [{"role": ["user"]}]}, "unknown role", "unknown role ['user']"),
    "picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "content is not a string",
        "the content of messages[0] must be text, got list",
    ),
    "broken call": (
        talk("?", '<tool_call>{"name": "weather"</tool_call>'),
        "call cannot be read",
        "turn 1 cannot be read in the format hermes: broken JSON",
    ),
    "executable": (
        talk("?", "[weather(town=__import__('os').getcwd())]"),
        "call cannot be read",
        "an argument must be a literal, found Call",
    ),
    "brackets": (talk("?", "[as (they) say]"), "call cannot be read", "no Python expression"),
    "unknown tool": (talk("?", "[rain(town='Ulm')]"), "call does not fit its tool", "calls 'rain'"),
    "wrong type": (talk("?", "[weather(town=1)]"), "call does not fit its tool", "arguments.town must be string"),
    "no tools": (talk("?", "<tool_call>{}</tool_call>", tools=None), "call cannot be read", "keys name and arguments"),
    "alternation": (
        {"conversations": [{"from": "human", "value": "x"}] * 2 + [{"from": "gpt", "value": "y"}]},
        "turns do not alternate",
        "an assistant turn is missing",
    ),
    "bad schema": (
        talk("?", "x", tools=[{"name": "f", "parameters": {"properties": [1]}}]),
        "unusable tools",
        "parameters.properties must be an object, got array",
    ),
    "tools no list": (talk("?", "x", tools={"a": 1}), "unusable tools", "tools must be a list, got dict"),
    "tools broken": (talk("?", "x", tools="[{"), "broken JSON", "tools is a text that is not JSON"),
    "call of a turn": (
        {
            "tools": [WEATHER],
            "conversations": [{"from": "human", "value": "x"}, {"from": "function_call", "value": "f()"}],
        },
        "call cannot be read",
        "conversations[1] cannot be read: broken JSON",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_be_used_says_why(name):
    record, reason, said = UNUSABLE[name]
    with pytest.raises(UnusableError) as caught:
        converted(record, "x:1")
    assert caught.value.reason == reason
    assert said in caught.value.what
    assert caught.value.remedy


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


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="calls must be one of auto"):
        Importer("python")


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
