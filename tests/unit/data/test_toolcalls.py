"""Formats of tool calls."""

from __future__ import annotations

import contextlib
import json
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integration import bookings

from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.template_dialect import check_read_back, dialect_of, dropped, format_of
from turnwise.data.toolcalls import (
    MAX_CALLS,
    MAX_CHARS,
    MAX_DEPTH,
    PARSERS,
    Reply,
    ToolCallError,
    bfcl_python,
    llama_json,
    qwen_xml,
)
from turnwise.data.trajectories import parse_trajectory
from turnwise.types import ToolCall

# -- parsers and writers -----------------------------------------------------------------------------------------------


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
def test_calls_in_the_thinking_are_no_calls(name: str) -> None:
    example = EXAMPLES[name]
    assert PARSERS[name](f"<think>\nmaybe {example}\n</think>\n\n{example}") == Reply(f"maybe {example}", "", (CALL,))
    assert PARSERS[name](f"<think>{example}</think>No need.") == Reply(example, "No need.", ())
    assert PARSERS[name](f"the opening tag was in the prompt</think>{example}").calls == (CALL,)
    with pytest.raises(ToolCallError):
        PARSERS[name](f"<think>{example}")


@EACH_FORMAT
@given(calls=st.lists(calls, min_size=1, max_size=3))
@patient(25)
def test_what_is_written_is_read(name: str, calls: list[ToolCall]) -> None:
    assert PARSERS[name](RENDER[name](calls)).calls == tuple(calls)


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


def hermes_call(inside: str) -> str:
    return f"<tool_call>{inside}</tool_call>"


NOT_READ = {
    "hermes": [
        hermes_call('{"name": "f"}'),
        hermes_call('{"name": "f", "arguments": {}, "id": 1}'),
        hermes_call('{"name": "f", "arguments": "{}"}'),
        hermes_call('{"name": " ", "arguments": {}}'),
        hermes_call('{"name": [1], "arguments": {}}'),
        hermes_call('{"name": "f", "arguments": {"": 1}}'),
        hermes_call('{"name": "f", "arguments": {"a": NaN}}'),
        hermes_call('{"name": "f", "arguments": {"a": 1e999}}'),
        hermes_call('{"name": "f", "arguments": {"a": 1, "a": 2}}'),
        hermes_call(r'{"name": "f", "arguments": {"a": "\ud800"}}'),
        '<tool_call>{"name": "f", "arguments": {}}',
        "on </tool_call>",
    ],
    "qwen_xml": [
        "<tool_call>f</tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call><function=f><parameter=a>1</function></tool_call>",
        xml(ToolCall("f", {"a": 1})).replace("</function>", ""),
        "<function=f></function>",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>1</parameter></function></tool_call>",
    ],
    "llama_json": [
        '{"name": "f"}',
        '{"answer": 42}',
        '{"name": "f", "parameters": {}} and so on',
        'Well: <|python_tag|>{"name": "f", "parameters": {}}',
        "<|python_tag|>brave_search.call(query='x')",
    ],
    "bfcl_python": [
        *("[f(1)]", "[f(**{'a': 1})]", "f(a=1, a=2)", "f(a=g(b=1))", "f(a=10**10**10)", "f(a=name)", "f(a=f'{1}')"),
        *("f(a={1: 2})", "f(a={'k': 1, 'k': 2})", "f(a=b'x')", "f(a=-True)", "f(a=1) or g()", "f()(a=1)"),
        *("[x for x in ()]", "[f(a=1)", "f(a='\x00')"),
    ],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in NOT_READ.items() for text in texts])
def test_what_is_refused(name: str, text: str) -> None:
    with pytest.raises(ToolCallError):
        PARSERS[name](text)


@EACH_FORMAT
def test_bounds(name: str) -> None:
    parse, render = PARSERS[name], RENDER[name]
    assert len(parse(render([ToolCall("f", {})] * MAX_CALLS)).calls) == MAX_CALLS
    with pytest.raises(ToolCallError):
        parse(render([ToolCall("f", {})] * (MAX_CALLS + 1)))
    with pytest.raises(ToolCallError):
        parse(" " * (MAX_CHARS + 1))
    nested: Any = 1
    for _ in range(MAX_DEPTH - 1):
        nested = [nested]
    assert parse(render([ToolCall("f", {"a": nested})])).calls[0].arguments == {"a": nested}
    with pytest.raises(ToolCallError):
        parse(render([ToolCall("f", {"a": [[nested]]})]))
    with pytest.raises(ToolCallError):
        parse(render([ToolCall("f", {"b" * 257: 1})]))


def repeated(before: str, part: str, after: str = "") -> str:
    return before + part * ((MAX_CHARS - len(before) - len(after)) // len(part)) + after


HOSTILE = {
    "brackets": repeated("", "["),
    "objects": repeated("", '{"a":'),
    "hermes lists": repeated('<tool_call>{"name": "f", "arguments": ', "["),
    "hermes name": '<tool_call>{"name": ' + "[" * 300 + "]" * 300 + ', "arguments": {}}</tool_call>',
    "llama name": '{"name": ' + '{"a":' * 300 + "1" + "}" * 300 + ', "parameters": {}}',
    "tags": repeated("", "<tool_call>"),
    "space": repeated("<tool_call>", " "),
    "xml parameters": repeated("<tool_call><function=f>", "<parameter=a>"),
    "llama numbers": repeated('{"name": "f", "parameters": {"a": ', "1"),
    "thoughts": repeated("", "<think>"),
    "python": repeated("f(a=", "-", "1)"),
    "python not": repeated("f(a=", "not ", "1)"),
    "python sum": repeated("f(a=", "1+", "1)"),
    "python power": repeated("f(a=", "9**", "9)"),
    "python attributes": repeated("f(a=b", ".c", ")"),
    "python calls": repeated("f", "()"),
    "python lambdas": repeated("f(a=", "lambda:", "1)"),
    "python digits": repeated("f(a=", "1", ")"),
    "python f-strings": "f(a=" + "f'{" * 200 + "1",
    "python brackets": repeated("f(a=", "("),
    "python dictionaries": "f(a=" + "{'a':" * 150 + "1" + "}" * 150 + ")",
}


@EACH_FORMAT
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.timeout(60)  # each takes some hundredths of a second
def test_hostile_text_is_refused_or_read_and_soon(name: str, kind: str) -> None:
    with contextlib.suppress(ToolCallError):
        PARSERS[name](HOSTILE[kind])


TAGS = "<tool_call> </tool_call> <function=f> </function> <parameter=a> </parameter> <think> </think> <|python_tag|>"
JSON = '{"name":"f", "arguments":{ "parameters":{ "a":1 } [ ] 1 " \\ ;'
PYTHON = "f( a= ) , ' f'{ ( * ** := lambda: \t \n # é"
pieces = st.sampled_from([*TAGS.split(" "), *JSON.split(" "), *PYTHON.split(" "), "\ud800", "\x00"])


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """The example of a format, with up to six characters replaced."""
    example = draw(st.sampled_from(sorted(EXAMPLES.values())))
    start = draw(st.integers(0, len(example)))
    stop = draw(st.integers(start, min(len(example), start + 6)))
    return example[:start] + draw(st.text(max_size=4)) + example[stop:]


@EACH_FORMAT
@given(text=st.lists(pieces | st.text(max_size=3), max_size=24).map("".join) | damaged())
@patient(120)
def test_nothing_but_the_documented_error(name: str, text: str) -> None:
    for reply in (text, f"f(a={text})", f"<tool_call>{text}", '{"name": ' + text):
        try:
            found = PARSERS[name](reply)
        except ToolCallError:
            continue
        json.dumps([call.arguments for call in found.calls], allow_nan=False).encode()


# -- detection ---------------------------------------------------------------------------------------------------------


XML = """
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {%- for key, value in call.function.arguments.items() %}
            {{- '<parameter=' + key + '>\\n' + (value | string) + '\\n</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
SILENT = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


def chat_of(family: str, template: str | None = None) -> ChatTokens:
    words: Any = bookings.tokenizer(family)
    if template is not None:
        words.chat_template = template
    return ChatTokens(words)


@pytest.mark.parametrize(
    ("family", "template", "form"),
    [
        ("qwen2", None, "hermes"),
        ("qwen2", XML, "qwen_xml"),
        ("llama", None, "llama_json"),
        ("mistral", None, None),  # its form has no parser
        ("gemma", None, None),
        ("qwen2", SILENT, None),
    ],
)
def test_the_format_is_the_one_that_reads_the_templates_calls_back(
    family: str, template: str | None, form: str | None
) -> None:
    assert format_of(chat_of(family, template)) == form


@pytest.mark.parametrize("family", sorted(bookings.FAMILIES))
def test_every_reply_can_be_read_back_and_every_word_is_shown(family: str) -> None:
    chat = chat_of(family)
    dialect = dialect_of(chat)
    singles = [parse_trajectory(record, "f:1") for record in bookings.dialogues(12) if "note it" not in str(record)]
    for trajectory in singles:
        shown = dialect(trajectory)
        last = max(place for place, message in enumerate(shown.messages) if message["role"] == "assistant")
        text = chat.text(shown.messages[:last], shown.tools)
        for tool in ("find_table", "add_event", "cancel"):
            assert tool in text
        for message in trajectory.messages[:-1]:
            silent = family == "llama" and message.get("tool_calls")  # it shows the calls alone
            assert silent or message["content"] in text
        spines = chat.spines(shown.messages, shown.tools)
        actions = [chat.decode(spine.ids[start:stop]) for spine in spines for start, stop in spine.turns]
        assert check_read_back(dialect, trajectory, actions) == ""
        assert dropped(trajectory, actions, actions)[0] == (family == "llama" and "One moment." in str(trajectory))
        for message, action in zip((m for m in trajectory.messages if m["role"] == "assistant"), actions, strict=True):
            calls = [ToolCall(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
            assert list(PARSERS[dialect.format](action, trajectory.tools).calls) == calls


def test_tools_as_text_in_a_chosen_format() -> None:
    chat = chat_of("qwen2")
    dialect = dialect_of(chat, as_text=True, form="bfcl_python")
    trajectory = parse_trajectory(bookings.dialogues(2)[1], "f:2")
    shown = dialect(trajectory)
    assert shown.tools == () and [m["role"] for m in shown.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert shown.messages[0]["content"].startswith("You book tables") and "add_event" in shown.messages[0]["content"]
    calls = bfcl_python(str(shown.messages[2]["content"])).calls
    assert [call.name for call in calls] == ["find_table", "add_event"]
    assert shown.messages[3]["content"].count("<tool_response>") == 2  # both answers in one message
