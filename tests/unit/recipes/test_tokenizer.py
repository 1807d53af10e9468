"""The shipped tokenizer and chat template: round trips, prefixes, stability where pieces meet."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from turnwise.shipped import ASSETS
from turnwise_worlds.household.environment import HouseholdEnv

TOKENIZER = AutoTokenizer.from_pretrained(ASSETS)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "é"}}}


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def demonstrations():
    env = HouseholdEnv()
    for split in ("train", "seen", "unseen"):
        for task in env.tasks(split, 30, seed=77):
            yield env.demonstrate(task, quality="clumsy").messages


def test_every_household_text_comes_back_and_has_no_split_word():
    for messages in demonstrations():
        for message in messages:
            tokens = ids(message["content"])
            assert TOKENIZER.decode(tokens) == message["content"]
            pieces = [TOKENIZER.decode([t]) for t in tokens]
            assert all(
                p[0] in " \n" or i == 0 or not p.isalnum() or not pieces[i - 1][-1].isalnum()
                for i, p in enumerate(pieces)
            )


TEXTS = st.text(alphabet="ab 1\n\t.é", max_size=8)


@settings(max_examples=150, deadline=None)
@given(TEXTS, TEXTS)
def test_tokens_do_not_change_across_turn_boundaries(action, observation):
    head = "<|im_start|>assistant\n"
    tail = f"<|im_end|>\n<|im_start|>user\n{observation}<|im_end|>\n"
    assert ids(head) + ids(action) + ids("<|im_end|>") + ids("\n") + ids(tail.removeprefix("<|im_end|>\n")) == ids(
        head + action + tail
    )


MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda c: {"role": "assistant", "content": c}, TEXTS),
        st.builds(lambda c: {"role": "assistant", "content": c, "tool_calls": [CALL, CALL]}, TEXTS),
        st.builds(lambda r, c: {"role": r, "content": c}, st.sampled_from(["user", "tool", "system"]), TEXTS),
    ),
    min_size=1,
    max_size=6,
)


def render(messages, **kwargs) -> str:
    return TOKENIZER.apply_chat_template(messages, tokenize=False, **kwargs)


@settings(max_examples=150, deadline=None)
@given(MESSAGES, st.booleans())
def test_a_longer_conversation_starts_with_the_shorter_one(messages, with_tools):
    tools = TOOLS if with_tools else None
    whole = render(messages, tools=tools)
    for k in range(1, len(messages)):
        assert whole.startswith(render(messages[:k], tools=tools))
        if messages[k]["role"] == "assistant":
            assert whole.startswith(render(messages[:k], tools=tools, add_generation_prompt=True))
