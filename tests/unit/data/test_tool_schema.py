from __future__ import annotations

import pytest

from turnwise.data.tool_schema import arguments_of, check_call, check_tool, check_value

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


def test_every_problem_of_a_call_is_named():
    alone = [problems(), problems(seats=1, price="x"), problems(seats=1, seat=1)]
    assert [len(told) for told in alone] == [1, 1, 1]
    assert sorted(problems(seat=1, price="x")) == sorted(problem for told in alone for problem in told)


def test_flat_and_nested_forms_and_json_text_are_one():
    assert check_call({"name": "book", "arguments": '{"seats": 1}'}, [BOOK["function"]]) == []
    assert arguments_of({"function": {"name": "book", "arguments": '{"seats": 1}'}}) == {"seats": 1}
    assert arguments_of({"name": "book", "arguments": ""}) == {}


@pytest.mark.parametrize("arguments", ["{seats: 1}", "[1]", 3, ["a"]])
def test_arguments_that_are_no_object(arguments):
    (problem,) = check_call({"name": "book", "arguments": arguments}, [BOOK])
    assert problem.startswith("call of 'book': arguments")


def test_a_tool_without_parameters_takes_any_object():
    assert check_call({"name": "look", "arguments": {"far": True}}, [{"name": "look"}]) == []


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


def test_an_unknown_type_is_not_judged():
    assert check_value(3, {"type": "decimal"}, "x") == []
