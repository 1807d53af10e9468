"""Steps of a dialogue, and its reasoning."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from turnwise.data.chat_tokens import ChatTemplateError, ChatTokens, Spine
from turnwise.data.trajectories import parse_trajectory
from turnwise.data.turns_in_context import TurnInContext, steps_of
from turnwise.methods.states import expert_turns
from turnwise.types import ToolCall, Trajectory

# -- steps -------------------------------------------------------------------------------------------------------------


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
DIALOGUE = {
    "id": "dialogue",
    "tools": [TOOL],
    "messages": [
        {"role": "system", "content": "You have tools."},
        {"role": "user", "content": "Weather in Paris?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": " Ask the tool. "},
        {"role": "tool", "content": "7 degrees"},
        {"role": "assistant", "content": "<think>Now answer.</think>\n\nIt is 7 degrees."},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "You are welcome."},
        {"role": "user", "content": "Bye."},
    ],
}


def test_every_turn_is_a_step_with_its_whole_context() -> None:
    trajectory = parse_trajectory(DIALOGUE, "file:1")
    messages = trajectory.messages
    assert steps_of(trajectory) == [
        TurnInContext(
            "dialogue#t0", messages[:2], "Ask the tool.", "", (ToolCall("weather", {"city": "Paris"}),), (TOOL,)
        ),
        TurnInContext("dialogue#t1", messages[:4], "Now answer.", "It is 7 degrees.", (), (TOOL,)),
        TurnInContext("dialogue#t2", messages[:6], None, "You are welcome.", (), (TOOL,)),
    ]


def test_a_step_is_the_state_of_the_same_id() -> None:
    """The state's tokens are the step's messages as the template shows them."""
    from transformers import AutoTokenizer

    assets = Path(__file__).parents[3] / "src" / "turnwise" / "assets" / "tiny"
    chat = ChatTokens(AutoTokenizer.from_pretrained(assets))
    trajectory = parse_trajectory(DIALOGUE, "file:1")
    states = expert_turns(trajectory, chat.spines(trajectory.messages, trajectory.tools), chat.decode)
    steps = steps_of(trajectory)
    assert [state.id for state in states] == [step.id for step in steps]
    for state, step in zip(states, steps, strict=True):
        assert list(state.ids) == chat.prompt(step.prompt, step.tools)


def test_a_call_that_is_none_is_named() -> None:
    broken = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
    with pytest.raises(ValueError, match="d#t0"):
        steps_of(Trajectory("d", ({"role": "user", "content": "u"}, broken)))


# -- reasoning ---------------------------------------------------------------------------------------------------------


THOUGHT = "<think>\nThe desk first.\n</think>\n\ngo to desk 1"
TALK = [
    {"role": "user", "content": "task"},
    {"role": "assistant", "content": THOUGHT},
    {"role": "user", "content": "You see a mug 1."},
    {"role": "assistant", "content": "<think>\nNow the mug.\n</think>\n\ntake mug 1"},
    {"role": "user", "content": "Taken."},
    {"role": "assistant", "content": "look"},
]
DROPS, KEEPS = "qwen3", "chatml"  # what each template does with thoughts of earlier turns


@pytest.mark.parametrize("template", [DROPS, KEEPS])
def test_the_last_reply_alone_has_the_history_of_the_whole_trajectory(build_byte_level, template):
    chat = ChatTokens(build_byte_level(template))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        last = chat.spines(TALK)[-1]
    assert chat.reply(TALK) == Spine(last.ids, last.turns[-1:])
    with pytest.raises(ChatTemplateError):
        chat.reply(TALK[:1])
