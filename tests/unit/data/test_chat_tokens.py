"""Token-in token-out: training and rollouts read the same ids, and those ids read as the template renders them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from turnwise.data.chat_tokens import EACH, ChatTemplateError, ChatTokens, compared
from turnwise.shipped import tiny_path

ONE_PIECE = ["chatml", "llama3", "inst", "qwen3"]  # templates that keep history and close a turn with a special token
EPISODE = [
    {"role": "system", "content": "You act."},
    {"role": "user", "content": "You see a desk 1."},
    {"role": "assistant", "content": "go to desk 1"},
    {"role": "user", "content": "On the desk 1, you see a mug 1."},
    {"role": "assistant", "content": "take mug 1 from desk 1"},
    {"role": "user", "content": "You pick up the mug 1."},
]
SEARCH = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


def rendered(tokenizer, messages, tools=None):
    return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)


def read(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def call(name, identity="call00001", **arguments):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("template", ONE_PIECE)
def test_spine_holds_every_state_and_action(build, template):
    tokenizer = build(template)
    chat = ChatTokens(tokenizer)
    spine = chat.spines(EPISODE)[0]
    assert [spine.ids[start:stop][-1] for start, stop in spine.turns] == [chat.end_id, chat.end_id]
    assert [chat.decode(spine.ids[a:b]) for a, b in spine.turns] == ["go to desk 1", "take mug 1 from desk 1"]
    for (start, _), at in zip(spine.turns, (2, 4)):
        assert list(spine.ids[:start]) == chat.prompt(EPISODE[:at])


def test_chatml_by_hand(build_byte_level):
    tokenizer = build_byte_level("chatml")
    chat = ChatTokens(tokenizer)
    assert read(tokenizer, chat.prompt(EPISODE[:2])) == (
        "<|im_start|>system\nYou act.<|im_end|>\n<|im_start|>user\nYou see a desk 1.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert read(tokenizer, chat.action("look")) == "look<|im_end|>"
    bridge = "\n<|im_start|>user\nNothing.<|im_end|>\n<|im_start|>assistant\n"
    assert read(tokenizer, chat.bridge({"role": "user", "content": "Nothing."})) == bridge
    cut = chat.bridge({"role": "user", "content": "Nothing."}, truncated=True)
    assert read(tokenizer, cut) == "<|im_end|>" + bridge
    assert chat.stop_ids == (chat.end_id,) == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)


text = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=12).map(str.strip)
spoken = st.one_of(text, st.just("go to desk 1\nlook"), st.just("Ünïcode 漢字")).filter(
    lambda t: t and "<" not in t and t == t.strip()
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(ONE_PIECE), st.lists(st.tuples(spoken, spoken), min_size=1, max_size=4))
def test_spine_reads_as_rendered_whatever_is_said(build_byte_level, template, turns):
    tokenizer = build_byte_level(template)
    chat = ChatTokens(tokenizer)
    messages = [{"role": "user", "content": "task"}]
    for action, observation in turns:
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]
    spine = chat.spines(messages)[0]
    for turn, (start, stop) in enumerate(spine.turns):
        assert read(tokenizer, spine.ids[:start]) == rendered(tokenizer, messages[: 2 * turn + 1])
        assert chat.decode(spine.ids[start:stop]) == turns[turn][0]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*ONE_PIECE, "plain"]), st.lists(spoken, min_size=1, max_size=4))
def test_a_rollout_that_repeats_the_expert_has_the_experts_ids(build_byte_level, template, actions):
    chat = ChatTokens(build_byte_level(template))
    opening = [{"role": "user", "content": "task"}]
    messages, ids = list(opening), chat.prompt(opening)
    for action in actions:
        answer = {"role": "user", "content": f"You did: {action}"}
        ids += chat.action(action) + chat.bridge(answer)
        messages += [{"role": "assistant", "content": action}, answer]
    spine = chat.spines([*messages, {"role": "assistant", "content": "end"}])[0]
    assert ids == list(spine.ids[: spine.turns[-1][0]])


def test_tool_calls_are_written_as_the_template_shows_them(build_byte_level):
    tokenizer = build_byte_level("qwen3")
    chat = ChatTokens(tokenizer)
    messages = [
        {"role": "user", "content": "find it"},
        {"role": "assistant", "content": "", "tool_calls": [call("search", q="a"), call("search", "call00002", q="b")]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
        {"role": "assistant", "content": "found"},
    ]
    spine = chat.spines(messages, SEARCH)[0]
    (start, stop), (last, _) = spine.turns
    assert read(tokenizer, spine.ids[start:stop]) == (
        '\n<tool_call>\n{"name": "search", "arguments": {"q": "a"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "search", "arguments": {"q": "b"}}\n</tool_call><|im_end|>'
    )
    assert read(tokenizer, spine.ids[:last]) == rendered(tokenizer, messages[:-1], SEARCH)
    assert list(spine.ids[stop:last]) == chat.bridge(messages[2:4])


def test_a_template_that_drops_past_reasoning_splits_the_trajectory(build_byte_level):
    tokenizer = build_byte_level("qwen3")
    chat = ChatTokens(tokenizer)
    thought = "<think>\nThe desk first.\n</think>\n\ngo to desk 1"
    messages = [
        {"role": "user", "content": "task"},
        {"role": "assistant", "content": thought},
        {"role": "user", "content": "You see a mug 1."},
        {"role": "assistant", "content": "take mug 1"},
        {"role": "user", "content": "Taken."},
        {"role": "assistant", "content": "look"},
    ]
    with pytest.warns(UserWarning, match=r"rewrites earlier turns.* first seen before assistant turn 1 .*split"):
        spines = chat.spines(messages)
    assert [len(spine.turns) for spine in spines] == [1, 2]  # nothing is dropped after the second turn
    (first, stop), (second, _), (third, _) = spines[0].turns[0], *spines[1].turns
    assert read(tokenizer, spines[0].ids[first:stop]) == thought + "<|im_end|>"
    assert chat.decode(spines[0].ids[first:stop]) == "go to desk 1"
    assert "desk first" not in read(tokenizer, spines[1].ids[:second])
    assert list(spines[1].ids[:third]) == chat.prompt(messages[:5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chat.spines(messages)  # said once


def test_thinking_switched_off_puts_an_empty_thought_into_the_prompt_only(build_byte_level):
    tokenizer = build_byte_level("qwen3")
    chat = ChatTokens(tokenizer, {"enable_thinking": False})
    assert read(tokenizer, chat.prompt(EPISODE[:2])).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert read(tokenizer, chat.action("look")) == "look<|im_end|>"
    with pytest.warns(UserWarning, match="rewrites earlier turns"):
        spines = chat.spines(EPISODE)  # the template takes the empty thought back, so each turn has its own prompt
    assert [list(s.ids[: s.turns[0][0]]) for s in spines] == [chat.prompt(EPISODE[:2]), chat.prompt(EPISODE[:4])]


@pytest.fixture
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny_path())


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
    with pytest.raises(ChatTemplateError):
        ChatTokens(tokenizer)


def long_trajectory(turns: int, thought: str = "") -> list[dict[str, str]]:
    told: list[dict[str, str]] = [{"role": "user", "content": "go"}]
    for turn in range(turns):
        told += [
            {"role": "assistant", "content": f"{thought if turn == turns // 2 else ''}go to {turn % 7}"},
            {"role": "user", "content": f"you see {turn % 5}"},
        ]
    return told


def test_checks_of_a_long_history_grow_with_its_turns_and_not_with_their_square() -> None:
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
