"""Which format a chat template writes calls in, and what it loses of a conversation."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration import bookings

from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.dialect import check_read_back, dialect_of, drops_text, format_of
from turnwise.data.toolcalls import PARSERS, bfcl_python
from turnwise.data.trajectories import parse_trajectory
from turnwise.types import ToolCall

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


@pytest.mark.parametrize(
    ("family", "system", "tools"),
    [("qwen2", False, False), ("llama", False, False), ("mistral", False, True), ("gemma", True, True)],
)
def test_what_a_template_loses_is_known(family: str, system: bool, tools: bool) -> None:
    dialect = dialect_of(chat_of(family))
    assert (bool(dialect.lost_system), bool(dialect.lost_tools)) == (system, tools)


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
        assert drops_text(trajectory, actions) == (family == "llama" and "One moment." in str(trajectory))
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
