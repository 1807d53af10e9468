"""Templates that never end or fill the memory: one message each, within seconds; those of models render as ever."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from transformers import AutoTokenizer

from turnwise.data import render_watch
from turnwise.data.chat_tokens import ChatTemplateError, ChatTokens
from turnwise.data.render_and_encode import EACH, compared
from turnwise.models.shipped import tiny_path

NESTED = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
BOMBS = {
    "loops": NESTED,
    "loops that say something": NESTED.replace("{% endfor %}", "x{% endfor %}", 1),
    "a long range": "{% for a in range(10 ** 9) %}{% endfor %}",
    "a text times a number": "{{ 'x' * 10000000000 }}",
    "a list times a number": "{{ ([1] * 10000000000) | length }}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "squares": "{% set n = namespace(v=9) %}{% for a in range(60) %}{% set n.v = n.v * n.v %}{% endfor %}",
    "doubling": "{% set n = namespace(v='xy') %}{% for a in range(99) %}{% set n.v = n.v ~ n.v %}{% endfor %}",
    "adding": "{% set n = namespace(v='xy') %}{% for a in range(99) %}{% set n.v = n.v + n.v %}{% endfor %}",
    "a width": "{{ '%9999999999d' % 1 }}",
    "a width that is given": "{{ '%*d' % (9999999999, 1) }}",
    "a format": "{{ '{:>9999999999}'.format(1) }}",
    "a format that is given": "{{ '{:>{}}'.format(1, 9999999999) }}",
    "a filter's format": "{{ '%9999999999d' | format(1) }}",
    "a filter's width": "{{ 'x' | center(9999999999) }}",
    "a method": "{{ 'x'.ljust(9999999999) }}",
    "replacing": "{% set t = 'x' * 1000000 %}{{ t.replace('x', t) }}",
    "a filter that replaces": "{% set t = 'x' * 1000000 %}{{ t | replace('x', t) }}",
    "joining": "{% set t = 'x' * 1000000 %}{{ t.join([t] * 100000) }}",
    "a long text": "{% set t = 'x' * 1000000 %}{% for a in range(100) %}{{ t }}{% endfor %}",
    "doubling a list": "{% set n = namespace(v=[1]) %}{% for a in range(99) %}{% set n.v = n.v + n.v %}{% endfor %}",
    "a date": "{{ strftime_now('%Y' * 1000000) }}",
    "lists in lists": "{% set n = namespace(v=[1]) %}{% for a in range(60) %}{% set n.v = [n.v, n.v] %}{% endfor %}{{ n.v }}",
    "mappings in mappings": "{% set n = namespace(v=1) %}{% for a in range(60) %}{% set n.v = dict(a=n.v, b=n.v) %}{% endfor %}",
    "a list in batches": "{% set n = namespace(v=[1]) %}{% for a in range(60) %}{% set n.v = (n.v * 2) | batch(2) | list %}"
    "{% endfor %}{{ n.v | tojson }}",
    "adding up lists": "{{ ([[1] * 1000] * 60000) | sum(start=[]) | length }}",
    "a long text in words": "{{ ('x ' * 30000000) | title }}",
    "a long text in slices": "{{ ('x' * 60000000) | slice(9) | list }}",
    "characters that become texts": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "widths times a number": "{{ 'a'.zfill(900000).ljust(999999) * 60 }}",
    "chance": "{{ ['a', 'b'] | random }}",
    "recursion": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
}


@pytest.fixture
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny_path())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_watch, "SECONDS", 0.3)
    monkeypatch.setattr(render_watch, "GROWTH", 2**29)


@pytest.mark.parametrize("name", BOMBS)
def test_a_template_without_end_is_one_message(name: str, tokenizer: Any, quick: None) -> None:
    tokenizer.chat_template = BOMBS[name] + tokenizer.chat_template
    began = time.process_time()
    with pytest.raises(ChatTemplateError, match="chat template refuses"):
        ChatTokens(tokenizer)
    assert time.process_time() - began < 5
    assert sum(range(1000)) == 499500  # what was on its way has arrived


def test_all_trials_of_a_template_have_one_limit(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer.chat_template = (
        "{% for a in range(40) %}{% for b in range(99999) %}{% endfor %}{% endfor %}" + tokenizer.chat_template
    )
    for _ in range(2):  # the first one compiles the template as well
        began = time.thread_time()
        tokenizer.apply_chat_template([{"role": "user", "content": "u"}], tokenize=False)
        one = time.thread_time() - began
    monkeypatch.setattr(render_watch, "SECONDS", 2 * one)  # each by itself stays below it
    with pytest.raises(ChatTemplateError, match="the template takes more than"):
        ChatTokens(tokenizer)


def test_templates_write_lists_and_mappings_as_ever(tokenizer: Any) -> None:
    written = "{% set a, b = [1, {'x': (2, 3)}], messages[:1] + [messages[0]] %}{{ a }}{{ b | length }}{{ a | tojson }}"
    tokenizer.chat_template = written + tokenizer.chat_template
    text = ChatTokens(tokenizer).text([{"role": "user", "content": "u"}])
    assert text.startswith("[1, {'x': (2, 3)}]2" + '[1, {"x": [2, 3]}]')


def test_a_template_that_is_endless_for_some_conversations_is_stopped_in_any_thread(
    tokenizer: Any, quick: None
) -> None:
    tokenizer.chat_template = f"{{% if messages|length > 4 %}}{NESTED}{{% endif %}}" + tokenizer.chat_template
    chat = ChatTokens(tokenizer)
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant") * 3]
    errors: list[BaseException] = []

    def render() -> None:
        try:
            chat.spines(messages)
        except ChatTemplateError as error:
            errors.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    thread.join(30)
    assert len(errors) == 1 and not thread.is_alive()


def test_a_template_that_leaves_users_out_is_refused(tokenizer: Any) -> None:
    text = "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}<|im_end|>\n{% endif %}"
    tokenizer.chat_template = text + "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    with pytest.raises(ChatTemplateError, match="user messages"):
        ChatTokens(tokenizer)


CHANGES = [
    "split() | sort | join(' ')",
    "split() | unique | join(' ')",
    "| upper",
    "| e",
    "| replace('\\n', ' ')",
    "| reverse",
]


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_template_that_changes_a_text_is_refused(change: str, role: str, tokenizer: Any) -> None:
    changed = f"m.content {change}" if change.startswith("|") else f"m.content.{change}"
    tokenizer.chat_template = (
        f"{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ ({changed}) if m.role == '{role}' else m.content }}}}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(ChatTemplateError, match=f"{role} messages"):
        ChatTokens(tokenizer)


@pytest.mark.parametrize("base", ["tiny", "tiny_tools", "tiny_thinking"])
def test_shipped_templates_render_as_without_bounds(base: str) -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from transformers.utils import chat_template_utils

    tokenizer = AutoTokenizer.from_pretrained(tiny_path(base))
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": [1, "é"]}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "<think>\nwell\n</think>\n\nyes"},
    ]
    render = tokenizer.apply_chat_template
    bounded = render(messages, tools=[tool], tokenize=False)
    tokenizer.chat_template += "{# another text, so that it is compiled anew #}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template_utils, "ImmutableSandboxedEnvironment", ImmutableSandboxedEnvironment)
        assert render(messages, tools=[tool], tokenize=False) == bounded


def long_trajectory(turns: int, thought: str = "") -> list[dict[str, str]]:
    told: list[dict[str, str]] = [{"role": "user", "content": "go"}]
    for turn in range(turns):
        told += [
            {"role": "assistant", "content": f"{thought if turn == turns // 2 else ''}go to {turn % 7}"},
            {"role": "user", "content": f"you see {turn % 5}"},
        ]
    return told


def test_two_thousand_turns_take_seconds(tokenizer: Any) -> None:
    """Every history was rendered before: the square of the turns, minutes."""
    chat = ChatTokens(tokenizer)
    began = time.process_time()
    spine = chat.spines(long_trajectory(2000))[0]
    assert len(spine.turns) == 2000 and time.process_time() - began < 15
    assert sum(compared(2000)) < 64 * 64 + 12 * 2000 and {0, 1, EACH - 1, 1999} <= compared(2000)
    assert compared(50) == set(range(50))


def test_a_template_that_rewrites_late_splits_where_it_did() -> None:
    """Found at one of the later looks, the trajectory is read again as if every history had been rendered."""
    chat = ChatTokens(AutoTokenizer.from_pretrained(tiny_path("tiny_thinking")))
    chat.tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content.split('</think>')[-1] if messages|length > 160 and not loop.last else m.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = ChatTokens(chat.tokenizer)
    told = long_trajectory(100)
    told[1]["content"] = "<think>hm</think>" + told[1]["content"]
    with pytest.warns(UserWarning, match="rewrites earlier turns"):
        found = chat.spines(told)
    assert found == chat._split(told, (), each=True) and len(found) > 1
    assert len(found[0].turns) == 80  # messages[:161] is the first history that is cut
