"""What every world of dialogues keeps: experts, forks, hostile text, the verifier."""

from __future__ import annotations

from turnwise.data.toolcalls import write_calls
from turnwise.types import ToolCall
from turnwise_worlds.tools import read_calls


def actions(trajectory, env):
    """The texts that the expert said."""
    found = []
    for message in trajectory.messages:
        if message["role"] == "assistant":
            calls = [
                ToolCall(call["function"]["name"], call["function"]["arguments"])
                for call in message.get("tool_calls", ())
            ]
            found.append(write_calls(calls, env.format) if calls else message["content"])
    return found


def test_the_verifier_accepts_the_expert_and_what_it_accepts_wins(world):
    for task in world.tasks("seen", 8):
        session = world.reset(task)
        before = session.fork()
        for action in actions(world.demonstrate(task), world):
            assert world.accepts(session, action, action)
            assert not world.accepts(session, "", action)
            assert world.same(action, f"  {action} ") and not world.same(action, action + "x")
            calls = read_calls(action, world.format)
            if calls:
                spoiled = ToolCall(calls[0].name + "q", calls[0].arguments)
                assert not world.accepts(session, write_calls([spoiled], world.format), action)
                assert not world.accepts(session, "done", action)
            session.step(action)
        assert session.won and not world.accepts(session, "done", "done")
        assert before.turns == 0 and not before.seen


def test_no_mistake_of_the_clumsy_expert_is_accepted(world):
    refused = 0
    for task in world.tasks("train", 30):
        session = world.reset(task)
        good = actions(world.demonstrate(task, "good"), world)
        for action in actions(world.demonstrate(task, "clumsy"), world):
            accepted = world.accepts(session, action, action)
            assert accepted == (action == good[0])
            if accepted:
                good.pop(0)
            refused += not accepted
            session.step(action)
    assert refused
