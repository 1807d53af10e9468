"""env=mcp over real servers that are made with the package's own class, over stdio and over HTTP."""

from __future__ import annotations

import gc
import json
import random
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.envs.demonstrations import Replayed, check_forks
from tests.unit.envs.hostile import check_hostile

from turnwise.env import EnvironmentFault
from turnwise.types import Task
from turnwise_worlds.mcp import McpEnv
from turnwise_worlds.replayed_episodes import ReplayDiffersError

pytestmark = pytest.mark.extra("mcp")

COUNTER = """
import os, sys, time
from mcp.server.mcpserver import Image, MCPServer
server = MCPServer("counter", log_level="CRITICAL")
count = 0
@server.tool(structured_output=False)
def add(number: int = 1):
    "Adds."
    global count
    count += number
    return f"{count}"
@server.tool()
def seen() -> dict[str, int]:
    "Tells."
    return {"count": count}
@server.tool(structured_output=False)
def odd(what: str):
    "Misbehaves."
    if what == "die":
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(3)
    if what == "sleep":
        time.sleep(60)
    if what == "picture":
        return ["seen", Image(data=b"x", format="png")]
    if what == "time":
        return str(time.time_ns())
    if what == "variable":
        return os.environ.get("TURNWISE_TEST", "none")
    raise ValueError(what)
if __name__ == "__main__":
    server.run(*sys.argv[1:2], **({"port": int(sys.argv[2])} if sys.argv[2:] else {}))
"""


def call(name: str, **arguments: Any) -> str:
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"{name}({given})"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "counter.py"
    path.write_text(COUNTER)
    return path


RECORDS = [{"id": f"{word}", "prompt": f"count {word}", "answer": "3"} for word in ("up", "on")]


def served(command: list[str], **more: Any) -> McpEnv:
    return McpEnv(tasks_in(Path(command[-1]).parent), command, format="bfcl_python", **more)


def tasks_in(folder: Path) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


def counter(script: Path, **more: Any) -> McpEnv:
    return served(["python", str(script)], **more)


def task(**data: Any) -> Task:
    return Task("mcp", "train/x", "train", {"prompt": "count", "answer": "3", **data})


@pytest.mark.slow
def test_forks_are_independent_and_hostile_actions_do_no_harm(script: Path) -> None:
    env = counter(script)
    actions = (call("add", number=1), call("add", number=2), "3")
    tasks = env.tasks("train", 2)
    for each in tasks:
        session = env.reset(each)
        seen = tuple(session.step(action).observation for action in actions)
        episode = Replayed(each, actions, seen, session.won, True, ())
        assert seen == ("1", "3", "") and session.won
        assert check_forks(env, [episode], actions, random.Random(0)) == []
    assert check_hostile(env, tasks, actions, 4) == []


@pytest.mark.slow
def test_a_server_that_ignores_the_end_of_its_input_ends_with_the_program(script: Path) -> None:
    program = f"""
        from turnwise_worlds.mcp import McpEnv
        from turnwise.types import Task
        shell = "'{sys.executable}' '{script}'; exec -a '{script}-orphan' sleep 120"
        env = McpEnv({str(tasks_in(script.parent))!r}, ["bash", "-c", shell], format="bfcl_python")
        print(env.reset(Task("mcp", "x", "train", {{"prompt": "p", "answer": "3"}})).step("add()").observation)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, check=True, timeout=90
    )
    assert done.stdout.strip() == b"1"
    assert not _running(Path(f"{script}-orphan"))


def test_the_verifier_accepts_equal_calls_and_refuses_others(script: Path) -> None:
    env = counter(script)
    session = env.reset(task())
    accepted = ["add(number=2)", "[add(number=2)]", "add( number = 2 )"]
    refused = [
        "add(number=1)",
        "add()",
        "seen()",
        "[add(number=2), seen()]",
        "subtract(number=2)",
        "Done.",
        "3",
        "add(2",
        "",
    ]
    assert [action for action in accepted if not env.accepts(session, action, "add(number=2)")] == []
    assert [action for action in refused if env.accepts(session, action, "add(number=2)")] == []


def test_a_server_that_dies_is_a_fault_with_its_last_words_and_a_random_one_is_told(script: Path) -> None:
    env = counter(script)
    session = env.reset(task())
    session.step("add()")
    with pytest.raises(EnvironmentFault, match=r"MCP server .*out of memory"):
        session.step(call("odd", what="die"))
    assert session.step("add()").observation == "2"  # in a fresh process, after the first call was repeated
    random = env.reset(task())
    random.step(call("odd", what="time"))
    fork = random.fork()
    random.step("add()")
    with pytest.raises(ReplayDiffersError, match="train/x"):
        fork.step("add()")


@pytest.mark.slow
def test_a_late_server_is_a_fault_and_servers_end_with_their_episodes(script: Path) -> None:
    env = counter(script, timeout=30)
    session = env.reset(task())
    session.step("add()")
    with pytest.raises(EnvironmentFault, match="odd"):
        session.step(call("odd", what="sleep"))
    dropped = env.reset(task())
    dropped.step("add()")
    del session, dropped
    gc.collect()
    deadline = time.monotonic() + 60
    while _running(script) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _running(script)


def _running(script: Path) -> bool:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:  # it ended just now
            continue
    return any(str(script).encode() in line for line in lines)


def test_a_server_over_http_shares_its_state(script: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(script), "streamable-http", str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.05)
        for place in (1, 2):
            env = McpEnv(tasks_in(script.parent), url=f"http://127.0.0.1:{port}/mcp", format="bfcl_python")
            one, other = env.reset(task()), env.reset(task())
            counts = [session.step("add(number=1)").observation for session in (one, other, one)]
            assert counts == [str(3 * place - 2), str(3 * place - 1), str(3 * place)]  # its state is its own matter
    finally:
        server.kill()
        server.wait()
    with pytest.raises(EnvironmentFault, match="cannot be reached"):
        env.reset(task()).step("add()")
