"""The client of OpenAI against the gateway: with and without streams, text and calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI

from turnwise_worlds.agent import AgentRequestQueue, Conversation, agent_reply_message, continuation_of_request

TOOL = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
NESTED = {"type": "function", "function": TOOL}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
TWO = f'I add.\n{CALL}\n<tool_call>{{"name": "add", "arguments": {{"a": 3, "b": 4}}}}</tool_call>'


@pytest.fixture
def client(served: tuple[AgentRequestQueue, str]) -> OpenAI:
    requests, address = served
    return OpenAI(api_key=requests.token, base_url=address, max_retries=0, timeout=20)


def replies(requests: AgentRequestQueue, *texts: str) -> list[Conversation]:
    """Answers the next requests with these texts, in a thread; returns the list of what was asked."""
    asked: list[Conversation] = []

    def answer() -> None:
        for number, text in enumerate(texts):
            request = requests.next()
            assert request is not None
            asked.append(request.conversation)
            request.answer(agent_reply_message(text, request.conversation.tools, "hermes", number))

    threading.Thread(target=answer, daemon=True).start()
    return asked


def chat_loop(client: OpenAI, stream: bool) -> list[Any]:
    """What people write: call tools until the reply has no calls. Returns the messages."""
    messages: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "1 + 2?"}]
    while True:
        if stream:
            with client.chat.completions.stream(model="policy", messages=messages, tools=[NESTED]) as events:  # type: ignore[list-item]
                for _ in events:
                    pass
                reply = events.get_final_completion().choices[0].message
        else:
            reply = client.chat.completions.create(model="policy", messages=messages, tools=[NESTED]).choices[0].message  # type: ignore[list-item, assignment]
        messages.append(reply.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        if not reply.tool_calls:
            return messages
        calls = reply.tool_calls
        messages += [{"role": "tool", "tool_call_id": c.id, "content": c.function.arguments} for c in calls]


LOOPS: dict[str, Callable[[OpenAI], Any]] = {
    "chat": lambda client: chat_loop(client, False),
    "chat, streamed": lambda client: chat_loop(client, True),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_of_tools_is_one_conversation(served: tuple[AgentRequestQueue, str], client: OpenAI, loop: str) -> None:
    """Each request continues the one before: tokens are appended for the answers of the tools alone."""
    asked = replies(served[0], TWO, CALL, "It is 3.")
    found = LOOPS[loop](client)
    first, second, third = asked
    assert [m["role"] for m in first.messages] == ["system", "user"]
    assert first.tools[0]["function"]["name"] == "add"
    added = continuation_of_request(first, agent_reply_message(TWO, first.tools, "hermes", 0), second)
    assert added is not None
    assert [(m["role"], m["content"].replace(" ", "")) for m in added] == [
        ("tool", '{"a":1,"b":2}'),
        ("tool", '{"a":3,"b":4}'),
    ]
    last = continuation_of_request(second, agent_reply_message(CALL, first.tools, "hermes", 1), third)
    assert last is not None
    assert len(last) == 1
    assert found[-1] in ("It is 3.", {"role": "assistant", "content": "It is 3."})
    assert [call["id"] for call in found[2]["tool_calls"]] == ["call_0_0", "call_0_1"]
    assert found[2]["content"] == "I add."


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "custom", "custom": {"name": "x"}}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"messages": []},
        {"tools": 5},
        {"tools": [{"type": "function", "function": {}}]},
        {"messages": [{"role": "assistant", "tool_calls": 5}]},
    ],
    ids=["n", "logprobs", "format", "tool", "image", "role", "empty", "tools", "no name", "calls"],
)
def test_what_the_policy_cannot_give_is_refused(client: OpenAI, more: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**{"model": "x", "messages": [{"role": "user", "content": "?"}]} | more)


def test_another_token_is_refused_and_so_is_an_ended_episode(
    served: tuple[AgentRequestQueue, str], client: OpenAI
) -> None:
    requests, address = served
    with pytest.raises(openai.AuthenticationError):
        OpenAI(api_key="another", base_url=address, max_retries=0).chat.completions.create(model="x", messages=[])
    threading.Timer(0.2, requests.end).start()
    for _ in range(2):  # one waits while the episode ends, the other comes after
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(model="x", messages=[{"role": "user", "content": "?"}])
        assert refused.value.status_code == 410
