"""Trajectories of other programs."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.data.other_formats import converted
from turnwise.data.read_records import UnusableError

# -- what is converted -------------------------------------------------------------------------------------------------


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}


def call(name="weather", **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def roles(trajectory):
    return [message["role"] for message in trajectory.messages]


def test_openai_keys():
    arguments = {"function": {"name": "weather", "arguments": '{"town": "Ulm"}'}}
    record = {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Rain"}, {"type": "text", "text": "in Ulm?"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", **arguments}]},
            {"role": "tool", "tool_call_id": "c1", "content": "yes"},
            {"role": "assistant", "content": "It rains.", "refusal": None},
        ],
        "tools": [WEATHER],
        "parallel_tool_calls": False,
    }
    found = converted(record, "folder/talks.jsonl:7")
    assert found.id == "talks:7"
    assert found.tools == (WEATHER,)
    assert found.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Rain\nin Ulm?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", **call(town="Ulm")}]},
        {"role": "tool", "content": "yes", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It rains."},
    )


def test_openais_older_functions():
    record = {
        "id": 12,
        "functions": [WEATHER["function"]],
        "messages": [
            {"role": "user", "content": "Rain?", "name": "someone"},
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "weather", "arguments": '{"town": "Ulm"}'},
            },
            {"role": "function", "name": "weather", "content": "yes"},
        ],
    }
    found = converted(record, "x:1")
    assert found.id == "12"
    assert found.tools == (WEATHER,)
    assert found.messages[1]["tool_calls"] == [call(town="Ulm")]
    assert found.messages[2] == {"role": "tool", "content": "yes", "name": "weather"}
    assert "name" not in found.messages[0]


TOOLACE = {
    "system": (
        "You are given a question and functions. Here is a list of functions in JSON format that you can invoke:\n"
        '[{"name": "Market Trends API", "description": "Trends.", "arguments": {"type": "dict", "properties": '
        '{"kind": {"type": "string"}, "most": {"type": "int"}}, "required": ["kind"]}, "required": null}, '
        '{"name": "news.search", "description": "News.", "parameters": {"type": "dict", "properties": '
        '{"share": {"type": "float"}}, "required": ["share"]}}].\n'
        "Put it in the format of [func1(name=value), func2(params)]. NO other text."
    ),
    "conversations": [
        {"from": "user", "value": "What moves the market?"},
        {
            "from": "assistant",
            "value": '[Market Trends API(kind="Market Trends API (all)", most=-2), news.search(share=0.5)]',
        },
        {
            "from": "tool",
            "value": '[{"name": "Market Trends API", "results": {"a": 1}}, {"name": "news", "results": "é"}]',
        },
        {"from": "assistant", "value": "Two things (a and b)."},
        {"from": "user", "value": "Thanks"},
    ],
}


def test_toolace():
    found = converted(TOOLACE, "x:1")
    assert roles(found) == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert found.messages[1]["tool_calls"] == [
        call("Market Trends API", kind="Market Trends API (all)", most=-2),
        call("news.search", share=0.5),
    ]
    assert found.messages[2]["content"] == '{"name": "Market Trends API", "results": {"a": 1}}'
    assert found.messages[3]["content"] == '{"name": "news", "results": "é"}'
    assert found.messages[4]["content"] == "Two things (a and b)."
    first, second = (tool["function"] for tool in found.tools)
    assert first["parameters"] == {
        "type": "object",
        "properties": {"kind": {"type": "string"}, "most": {"type": "integer"}},
        "required": ["kind"],
    }
    assert second["parameters"]["properties"]["share"] == {"type": "number"}


HERMES = [
    {
        "from": "system",
        "value": (
            "You are given signatures within <tools> </tools> tags. Here they are: <tools> "
            + json.dumps([WEATHER])
            + " </tools> Answer with <tool_call>\n{'arguments': <dict>, 'name': <name>}\n</tool_call>"
        ),
    },
    {"from": "human", "value": "Rain in Ulm and Bonn?"},
    {
        "from": "gpt",
        "value": '<think>both</think>Looking.\n<tool_call>\n{"arguments": {"town": "Ulm"}, "name": "weather"}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"town": "Bonn"}}\n</tool_call>',
    },
    {"from": "tool", "value": "<tool_response>\nyes\n</tool_response>\n<tool_response>{'a': 1}</tool_response>"},
    {"from": "gpt", "value": "Yes."},
]


def test_hermes():
    found = converted({"id": "h", "conversations": HERMES}, "x:1")
    assert roles(found) == ["user", "assistant", "tool", "tool", "assistant"]
    assert found.messages[1] == {
        "role": "assistant",
        "content": "Looking.",
        "reasoning_content": "both",
        "tool_calls": [call(town="Ulm"), call(town="Bonn")],
    }
    assert [message["content"] for message in found.messages[2:4]] == ["yes", "{'a': 1}"]
    assert found.tools == (WEATHER,)


def test_a_record_of_ours_is_left_as_its_world_reads_it():
    text = '<tool_call>\n{"name": "weather", "arguments": {"town": "Ulm"}}\n</tool_call>'
    messages = [HERMES[0], HERMES[1], {"from": "gpt", "value": text}]
    record = {"conversations": messages, "task": {"env": "search", "id": "t", "split": "train", "data": {}}}
    found = converted(record, "x:1")
    assert found.messages[0]["content"] == HERMES[0]["value"]
    assert found.messages[2]["content"] == text


def test_xlam():
    """A request with its calls; parameters listed by name, with Python's types, one of them called ``type``."""
    tool = {
        "name": "giveaways",
        "description": "Lists giveaways.",
        "parameters": {
            "type": {"description": "Of the giveaway.", "type": "str", "default": "game"},
            "pages": {"description": "Which pages.", "type": "List[int]"},
            "limit": {"description": "How many.", "type": "int, optional"},
            "odd": {"description": "Anything.", "type": "Union[int, str], optional"},
        },
    }
    answers = [{"name": "giveaways", "arguments": {"pages": [1, 2], "limit": 3}}]
    record = {"id": 7, "query": "Pages 1 and 2.", "tools": json.dumps([tool]), "answers": json.dumps(answers)}
    found = converted(record, "xlam.json:8")
    assert found.id == "7"
    assert found.messages == (
        {"role": "user", "content": "Pages 1 and 2."},
        {"role": "assistant", "content": "", "tool_calls": [call("giveaways", pages=[1, 2], limit=3)]},
    )
    function = found.tools[0]["function"]
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "type": {"description": "Of the giveaway.", "default": "game", "type": "string"},
            "pages": {"description": "Which pages.", "type": "array"},
            "limit": {"description": "How many.", "type": "integer"},
            "odd": {"description": "Anything."},
        },
        "required": ["pages"],
    }
    with pytest.raises(UnusableError):
        converted({**record, "answers": "[]"}, "xlam.json:9")  # the irrelevance records have no reply to learn from


# -- what cannot be used -----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=weather><parameter=town>Ulm</parameter></function></tool_call>",
        '{"name": "weather", "parameters": {"town": "Ulm"}}',
        "[weather(town='Ulm')]",
        '<tool_call>{"name": "weather", "arguments": {"town": "Ulm"}}</tool_call>',
    ],
)
def test_every_form_is_recognised(text):
    assert converted(talk("?", text), "x:1").messages[1]["tool_calls"] == [call(town="Ulm")]


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
