"""The four formats: what they read, what they refuse, and that nothing hostile gets further than a refusal."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise.data.toolcalls import (
    MAX_CALLS,
    MAX_CHARS,
    MAX_DEPTH,
    PARSERS,
    Reply,
    ToolCallError,
    bfcl_python,
    hermes,
    llama_json,
    qwen_xml,
)
from turnwise.types import ToolCall

EACH_FORMAT = pytest.mark.parametrize("name", PARSERS)
EXAMPLES = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": [true, null]}}\n</tool_call>',
    "qwen_xml": "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n[true, null]\n</parameter>\n"
    "</function>\n</tool_call>",
    "llama_json": '{"name": "f", "parameters": {"a": 1, "b": [true, null]}}',
    "bfcl_python": "[f(a=1, b=[True, None])]",
}
CALL = ToolCall("f", {"a": 1, "b": [True, None]})


def xml(call: ToolCall) -> str:
    inside = "".join(f"<parameter={key}>\n{json.dumps(value)}\n</parameter>\n" for key, value in call.arguments.items())
    return f"<tool_call>\n<function={call.name}>\n{inside}</function>\n</tool_call>"


def python(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


RENDER = {
    "hermes": lambda calls: "\n".join(
        f"<tool_call>\n{json.dumps({'name': c.name, 'arguments': c.arguments})}\n</tool_call>" for c in calls
    ),
    "qwen_xml": lambda calls: "\n".join(map(xml, calls)),
    "llama_json": lambda calls: "; ".join(json.dumps({"name": c.name, "parameters": c.arguments}) for c in calls),
    "bfcl_python": lambda calls: f"[{', '.join(map(python, calls))}]",
}


def patient(examples: int) -> settings:
    """A loaded machine is no failure."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


texts = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=8)  # tags have a test of their own
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(texts, st.lists(scalars, max_size=2), max_size=2)
names = st.sampled_from(["f", "get_weather", "a1", "x", "unit"])
calls = st.builds(ToolCall, names, st.dictionaries(names, values, max_size=3))


@EACH_FORMAT
def test_a_call_by_hand(name: str) -> None:
    assert PARSERS[name](EXAMPLES[name]) == Reply("", "", (CALL,))


@EACH_FORMAT
def test_prose_is_no_call(name: str) -> None:
    assert PARSERS[name]("It is 7 degrees in Paris.") == Reply("", "It is 7 degrees in Paris.", ())
    assert PARSERS[name]("") == Reply("", "", ())


@EACH_FORMAT
def test_calls_in_the_thinking_are_no_calls(name: str) -> None:
    example = EXAMPLES[name]
    assert PARSERS[name](f"<think>\nmaybe {example}\n</think>\n\n{example}") == Reply(f"maybe {example}", "", (CALL,))
    assert PARSERS[name](f"<think>{example}</think>No need.") == Reply(example, "No need.", ())
    assert PARSERS[name](f"the opening tag was in the prompt</think>{example}").calls == (CALL,)
    with pytest.raises(ToolCallError, match="never closed"):
        PARSERS[name](f"<think>{example}")


@EACH_FORMAT
@given(calls=st.lists(calls, min_size=1, max_size=3))
@patient(25)
def test_what_is_written_is_read(name: str, calls: list[ToolCall]) -> None:
    assert PARSERS[name](RENDER[name](calls)).calls == tuple(calls)


def test_prose_stands_around_hermes_and_xml_calls() -> None:
    for name, parse in (("hermes", hermes), ("qwen_xml", qwen_xml)):
        example = EXAMPLES[name]
        assert parse(f"First this. {example}\nThen that. {example}") == Reply(
            "", "First this. Then that.", (CALL, CALL)
        )


def test_a_tag_inside_a_text_argument_closes_nothing() -> None:
    text = '<tool_call>{"name": "say", "arguments": {"x": "</tool_call><tool_call>"}}</tool_call>'
    assert hermes(text).calls == (ToolCall("say", {"x": "</tool_call><tool_call>"}),)


def test_xml_values_take_their_type_from_the_schema() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"}}}}}
    call = "<tool_call><function=f>{}</function></tool_call>".format
    assert qwen_xml(call("<parameter=s>7</parameter>"), [tool]).calls[0].arguments == {"s": "7"}
    assert qwen_xml(call("<parameter=s>7</parameter>")).calls[0].arguments == {"s": 7}
    assert qwen_xml(call("<parameter=s>True</parameter>")).calls[0].arguments == {"s": True}
    assert qwen_xml(call("<parameter=s>\n a\nb \n</parameter>")).calls[0].arguments == {"s": " a\nb "}
    assert qwen_xml(call("")).calls == (ToolCall("f", {}),)


def test_forms_of_a_llama_call() -> None:
    alone = '{"type": "function", "name": "f", "parameters": {}}'
    for text in (alone, f"<|python_tag|>{alone}<|eom_id|>", '{"name": "f", "arguments": {}}', f"{alone};\n"):
        assert llama_json(text).calls == (ToolCall("f", {}),)
    assert llama_json(f"{alone}\n{alone}; {alone}").calls == (ToolCall("f", {}),) * 3


def test_forms_of_a_python_call() -> None:
    assert bfcl_python("math.hypot(x=-3, y=+4.0)").calls == (ToolCall("math.hypot", {"x": -3, "y": 4.0}),)
    assert bfcl_python("[f(t=(1, 'a'), d={'k': null}, ok=true), g()]").calls == (
        ToolCall("f", {"t": [1, "a"], "d": {"k": None}, "ok": True}),
        ToolCall("g", {}),
    )
    assert bfcl_python("[]").calls == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bfcl_python(r"f(x='\d')").calls == (ToolCall("f", {"x": r"\d"}),)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', "keys name and arguments"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": 1}</tool_call>', "no other"),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "must be an object, got str"),
        ("hermes", '<tool_call>{"name": " ", "arguments": {}}</tool_call>', "name of a tool must be text"),
        ("hermes", '<tool_call>{"name": [1], "arguments": {}}</tool_call>', "got list"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"": 1}}</tool_call>', "parameter of 'f' must be text"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}', "expected '</tool_call>'"),
        ("hermes", "on </tool_call>", "without <tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "NaN is not JSON"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>', "inf is no JSON number"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>', "twice"),
        ("hermes", r'<tool_call>{"name": "f", "arguments": {"a": "\ud800"}}</tool_call>', "surrogate"),
        ("qwen_xml", "<tool_call>f</tool_call>", "expected '<function='"),
        ("qwen_xml", "<tool_call><function=></function></tool_call>", "no name"),
        ("qwen_xml", "<tool_call><function=f><parameter=a>1</function></tool_call>", "never closed"),
        ("qwen_xml", xml(ToolCall("f", {"a": 1})).replace("</function>", ""), "expected '</function>'"),
        ("qwen_xml", "<function=f></function>", "outside <tool_call>"),
        (
            "qwen_xml",
            "<tool_call><function=f><parameter=a>1</parameter><parameter=a>1</parameter></function></tool_call>",
            "stands twice",
        ),
        ("llama_json", '{"name": "f"}', "keys name and parameters"),
        ("llama_json", '{"answer": 42}', "keys name and parameters"),
        ("llama_json", '{"name": "f", "parameters": {}} and so on', "broken JSON"),
        ("llama_json", 'Well: <|python_tag|>{"name": "f", "parameters": {}}', "after prose"),
        ("llama_json", "<|python_tag|>brave_search.call(query='x')", "broken JSON"),
        ("bfcl_python", "[f(1)]", "has no name"),
        ("bfcl_python", "[f(**{'a': 1})]", r"\*\* in the call"),
        ("bfcl_python", "f(a=1, a=2)", "stands twice"),
        ("bfcl_python", "f(a=g(b=1))", "must be a literal, found Call"),
        ("bfcl_python", "f(a=10**10**10)", "must be a literal, found BinOp"),
        ("bfcl_python", "f(a=name)", "must be a literal, found Name"),
        ("bfcl_python", "f(a=f'{1}')", "must be a literal, found JoinedStr"),
        ("bfcl_python", "f(a={1: 2})", "keys of an object must be text"),
        ("bfcl_python", "f(a={'k': 1, 'k': 2})", "twice"),
        ("bfcl_python", "f(a=b'x')", "must be a literal"),
        ("bfcl_python", "f(a=-True)", "must be a literal"),
        ("bfcl_python", "f(a=1) or g()", "expected a call, found BoolOp"),
        ("bfcl_python", "f()(a=1)", "dotted names"),
        ("bfcl_python", "[x for x in ()]", "expected a call"),
        ("bfcl_python", "[f(a=1)", "no Python expression"),
        ("bfcl_python", "f(a='\x00')", "no Python expression"),
    ],
)
def test_what_is_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(ToolCallError, match=message):
        PARSERS[name](text)


@EACH_FORMAT
def test_bounds(name: str) -> None:
    parse, render = PARSERS[name], RENDER[name]
    assert len(parse(render([ToolCall("f", {})] * MAX_CALLS)).calls) == MAX_CALLS
    with pytest.raises(ToolCallError, match="calls, more than"):
        parse(render([ToolCall("f", {})] * (MAX_CALLS + 1)))
    with pytest.raises(ToolCallError, match="characters, more than"):
        parse(" " * (MAX_CHARS + 1))
    nested: Any = 1
    for _ in range(MAX_DEPTH - 1):
        nested = [nested]
    assert parse(render([ToolCall("f", {"a": nested})])).calls[0].arguments == {"a": nested}
    with pytest.raises(ToolCallError, match="nested deeper"):
        parse(render([ToolCall("f", {"a": [[nested]]})]))
    with pytest.raises(ToolCallError, match=r"must be text of 1 to|no name"):
        parse(render([ToolCall("f", {"b" * 257: 1})]))


HOSTILE = {
    "brackets": lambda n: "[" * n,
    "objects": lambda n: '{"a":' * (n // 5),
    "hermes objects": lambda n: "<tool_call>" + '{"a":' * (n // 5 - 3),
    "hermes lists": lambda n: '<tool_call>{"name": "f", "arguments": ' + "[" * (n - 50),
    "hermes name": lambda n: '<tool_call>{"name": ' + "[" * 300 + "]" * 300 + ', "arguments": {}}</tool_call>',
    "llama name": lambda n: '{"name": ' + '{"a":' * 300 + "1" + "}" * 300 + ', "parameters": {}}',
    "hermes tags": lambda n: "<tool_call>" * (n // 11),
    "hermes space": lambda n: "<tool_call>" + " " * (n - 11),
    "xml parameters": lambda n: "<tool_call><function=f>" + "<parameter=a>" * (n // 13 - 2),
    "xml many": lambda n: "<tool_call><function=f>" + "".join(f"<parameter=a{i}>[</parameter>" for i in range(n // 40)),
    "llama numbers": lambda n: '{"name": "f", "parameters": {"a": ' + "1" * (n - 40),
    "think": lambda n: "<think>" * (n // 7),
    "thought": lambda n: "</think>" * (n // 8),
    "python unary": lambda n: "f(a=" + "-" * (n - 10) + "1)",
    "python not": lambda n: "f(a=" + "not " * (n // 4 - 4) + "1)",
    "python sum": lambda n: "f(a=" + "1+" * (n // 2 - 5) + "1)",
    "python power": lambda n: "f(a=" + "9**" * (n // 3 - 5) + "9)",
    "python attributes": lambda n: "f(a=b" + ".c" * (n // 2 - 5) + ")",
    "python calls": lambda n: "f" + "()" * (n // 2 - 5),
    "python subscripts": lambda n: "f(a=b" + "[0]" * (n // 3 - 5) + ")",
    "python lambdas": lambda n: "f(a=" + "lambda:" * (n // 7 - 5) + "1)",
    "python ternaries": lambda n: "f(a=" + "1 if 1 else " * (n // 12 - 5) + "1)",
    "python digits": lambda n: "f(a=" + "1" * (n - 10) + ")",
    "python strings": lambda n: "f(a=" + "'x' " * (n // 4 - 5) + ")",
    "python f-strings": lambda n: "f(a=" + "f'{" * 200 + "1",
    "python quotes": lambda n: "f(a='''" + "\n" * (n - 20),
    "python brackets": lambda n: "f(a=" + "(" * (n - 10),
    "python dictionaries": lambda n: "f(a=" + "{'a':" * 150 + "1" + "}" * 150 + ")",
}


@EACH_FORMAT
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_refused_or_read_and_soon(name: str, kind: str) -> None:
    began = time.process_time()
    for size in (5_000, MAX_CHARS):
        with contextlib.suppress(ToolCallError):
            PARSERS[name](HOSTILE[kind](size))
    assert time.process_time() - began < 2  # seconds of the processor; each takes some hundredths


@EACH_FORMAT
def test_the_size_of_a_reply_costs_nothing_beyond_the_bound(name: str) -> None:
    huge = EXAMPLES[name] * 200_000
    began = time.process_time()
    with pytest.raises(ToolCallError, match="more than"):
        PARSERS[name](huge)
    assert time.process_time() - began < 0.5


TAGS = "<tool_call> </tool_call> <function=f> </function> <parameter=a> </parameter> <think> </think> <|python_tag|>"
JSON = '{"name":"f", "arguments":{ "parameters":{ "a":1 } [ ] 1 " \\ ;'
PYTHON = "f( a= ) , ' f'{ ( * ** := lambda: \t \n # é"
pieces = st.sampled_from([*TAGS.split(" "), *JSON.split(" "), *PYTHON.split(" "), "\ud800", "\x00"])


@EACH_FORMAT
@given(text=st.lists(pieces | st.text(max_size=3), max_size=24).map("".join))
@patient(60)
def test_nothing_but_the_documented_error(name: str, text: str) -> None:
    for reply in (text, f"f(a={text})", f"<tool_call>{text}", '{"name": ' + text):
        try:
            found = PARSERS[name](reply)
        except ToolCallError:
            continue
        json.dumps([call.arguments for call in found.calls], allow_nan=False).encode()


@EACH_FORMAT
@given(data=st.data())
@patient(40)
def test_a_damaged_call_is_refused_or_read(name: str, data: st.DataObject) -> None:
    example = EXAMPLES[name]
    start = data.draw(st.integers(0, len(example)))
    stop = data.draw(st.integers(start, min(len(example), start + 6)))
    damaged = example[:start] + data.draw(st.text(max_size=4)) + example[stop:]
    with contextlib.suppress(ToolCallError):
        assert isinstance(PARSERS[name](damaged), Reply)
