"""A gateway that really listens, and agents in the sandbox that need nothing but Python."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turnwise_worlds.agent import AgentEnv, AgentRequestQueue
from turnwise_worlds.sandbox.sandbox import Limits
from turnwise_worlds.workspace import Box

PROGRAM = """
import json, os, urllib.request

def ask(messages, **more):
    body = json.dumps({"model": "policy", "messages": messages, **more}).encode()
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, head)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]

task = json.load(open("task.json"))
"""
"""What the agents of these tests begin with."""


@pytest.fixture
def counting() -> str:
    """An agent that asks three times, and scores the share of right answers."""
    return """
messages = [{"role": "user", "content": "count to 3"}]
for _ in range(3):
    reply = ask(messages)
    messages += [reply, {"role": "user", "content": "yes" if reply["content"] == str(len(messages) // 2 + 1) else "no"}]
answers = [message["content"] for message in messages[2::2]]
open("score.txt", "w").write(str(answers.count("yes") / 3))
"""


@pytest.fixture
def served() -> Iterator[tuple[AgentRequestQueue, str]]:
    """A queue of requests, and the address at which its gateway answers."""
    requests = AgentRequestQueue()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    requests.serve(listener)
    yield requests, f"http://127.0.0.1:{port}/v1"
    requests.end()
    requests.close()


@pytest.fixture
def agent(box: Box, tmp_path: Path) -> Callable[..., AgentEnv]:
    """Makes an environment of a program's text and of tasks."""
    roomy = Box(limits=Limits(seconds=30, memory_mib=256, processes=12), python=box.python)

    def make(program: str, tasks: str = '{"id": "a"}\n', **more: Any) -> AgentEnv:
        code = tmp_path / "code"
        code.mkdir(exist_ok=True)
        (code / "agent.py").write_text(PROGRAM + program)
        (tmp_path / "tasks.jsonl").write_text(tasks)
        files = {"tasks_file": str(tmp_path / "tasks.jsonl"), "code": str(code)}
        return AgentEnv(**{"command": "python3 agent.py", "score": "cat score.txt", "box": roomy} | files | more)

    return make
