"""Steps of a dialogue, and its reasoning."""

from __future__ import annotations

from pathlib import Path

from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.trajectories import parse_trajectory
from turnwise.data.turns_in_context import TurnInContext, steps_of
from turnwise.methods.states import expert_turns
from turnwise.types import ToolCall

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
