"""What a world of tools says, as tokens: a rollout that repeats the expert reads exactly the demonstration's ids."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from turnwise.data.chat_tokens import ChatTokens
from turnwise.env import tools_of
from turnwise.shipped import ASSETS
from turnwise_worlds.tool_environment import read_calls


@pytest.fixture(scope="module")
def chat():
    return ChatTokens(AutoTokenizer.from_pretrained(ASSETS))


@pytest.mark.parametrize("name", ["bfcl-tiny", "bfcl-public", "apibank", "apibank-hermes"])
@pytest.mark.parametrize("quality", ["good", "clumsy"])
def test_rollout_and_demonstration_have_the_same_tokens(chat, build, name, quality):
    world = build(name)
    for task in world.tasks("train", 3):
        trajectory = world.demonstrate(task, quality)
        spine = chat.spines(trajectory.messages, trajectory.tools)[0]
        session = world.reset(task)
        ids = chat.prompt(session.opening(), tools_of(session))
        for start, stop in spine.turns:
            assert ids == list(spine.ids[:start])
            action = list(spine.ids[start:stop])
            text = chat.decode(action)
            assert read_calls(text, world.format) is not None
            step = session.step(text)
            if not step.done:
                ids += action + chat.bridge(step.messages or {"role": "user", "content": step.observation})
        assert session.won
