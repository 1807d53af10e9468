from __future__ import annotations

import pytest

from turnwise.data.tool_schema import check_call, check_tool

BOOK = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {
                "seats": {"type": "integer"},
                "price": {"type": "number"},
                "class": {"type": "string", "enum": ["first", "second"]},
                "names": {"type": "array", "items": {"type": "string"}},
                "to": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
                "note": {"type": ["string", "null"]},
                "version": {"const": 2},
            },
            "required": ["seats"],
            "additionalProperties": False,
        },
    },
}


def problems(**arguments):
    return check_call({"type": "function", "function": {"name": "book", "arguments": arguments}}, [BOOK])


@pytest.mark.parametrize(
    "arguments",
    [
        {"seats": 2},
        {"seats": 2.0, "price": 3, "class": "first"},
        {"seats": 1, "names": ["a", "b"], "to": {"city": "x", "more": 1}, "note": None, "version": 2},
    ],
)
def test_calls_that_fit(arguments):
    assert problems(**arguments) == []


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({}, "seats"),
        ({"seats": "2"}, "arguments.seats"),
        ({"seats": True}, "arguments.seats"),
        ({"seats": 1.5}, "arguments.seats"),
        ({"seats": 1, "class": "third"}, "arguments.class"),
        ({"seats": 1, "names": ["a", 2]}, "arguments.names[1]"),
        ({"seats": 1, "to": {}}, "arguments.to"),
        ({"seats": 1, "note": 3}, "arguments.note"),
        ({"seats": 1, "version": 1}, "arguments.version"),
        ({"seats": 1, "seat": 2}, "seat"),
    ],
)
def test_calls_that_do_not_fit(arguments, place):
    (problem,) = problems(**arguments)
    assert place in problem


@pytest.mark.parametrize(
    "tool",
    [
        "book",
        {},
        {"function": {"description": "x"}},
        {"name": "a", "parameters": [1]},
        {"name": "f", "parameters": {"required": [{}]}},
    ],
)
def test_unusable_definitions(tool):
    assert check_tool(tool)
