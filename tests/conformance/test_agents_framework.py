"""The Agents SDK of OpenAI (make agent) against the gateway: its own loop, both interfaces, streamed and whole."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from turnwise_worlds.agent import AgentRequestQueue, Conversation, agent_reply_message, continuation_of_request

pytestmark = pytest.mark.extra("agent")

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


@pytest.fixture
def served() -> Iterator[tuple[AgentRequestQueue, str]]:
    requests = AgentRequestQueue()
    listener = socket.create_server(("127.0.0.1", 0))
    requests.serve(listener)
    yield requests, f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    requests.end()
    requests.close()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("interface", ["OpenAIChatCompletionsModel"])
def test_an_agent_of_the_framework_runs_unchanged(
    served: tuple[AgentRequestQueue, str], interface: str, stream: bool
) -> None:
    import agents
    from openai import AsyncOpenAI

    requests, address = served
    asked: list[Conversation] = []

    def answer() -> None:
        for number, text in enumerate((f"Let me look.{CALL}", "It rains in Oslo.")):
            request = requests.next()
            assert request is not None
            asked.append(request.conversation)
            request.answer(agent_reply_message(text, request.conversation.tools, "hermes", number))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()

    @agents.function_tool
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"rain in {city}"

    async def run() -> Any:
        agents.set_tracing_disabled(True)
        client = AsyncOpenAI(api_key=requests.token, base_url=address, max_retries=0, timeout=20)
        model = getattr(agents, interface)("policy", client)
        agent = agents.Agent(name="helper", instructions="Help.", tools=[weather], model=model)
        if not stream:
            return (await agents.Runner.run(agent, "Weather in Oslo?")).final_output
        running = agents.Runner.run_streamed(agent, "Weather in Oslo?")
        async for _ in running.stream_events():
            pass
        return running.final_output

    assert asyncio.run(run()) == "It rains in Oslo."
    thread.join(20)
    first, second = asked
    added = continuation_of_request(first, agent_reply_message(f"Let me look.{CALL}", first.tools, "hermes", 0), second)
    assert added is not None
    assert [(m["role"], m["content"]) for m in added] == [("tool", "rain in Oslo")]
