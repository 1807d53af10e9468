"""env=openenv over a real server that is made with the package's own helpers: ``brief_server`` beside this file."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from turnwise.envs.checks.hostile import check_hostile
from turnwise.envs.environment import Environment, EnvironmentFault, check_ready
from turnwise.envs.openenv import OpenenvEnv
from turnwise.envs.replay import ReplayedSession
from turnwise.errors import InputError

pytestmark = pytest.mark.extra("openenv")

SERVER = Path(__file__).with_name("brief_server.py")


@contextmanager
def serving(most: int) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(SERVER), str(port), str(most)])
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and server.poll() is None:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(64) as address:
        yield address


def asked(session: ReplayedSession) -> str:
    told = session.taken[-1].step.observation if session.taken else session.opening()[-1]["content"]
    return str(told).rpartition(" ")[2]


def test_the_text_of_a_reply_is_a_field_of_the_action(url: str) -> None:
    env = OpenenvEnv(url, field="text", threshold=0.9, horizon=4)
    assert isinstance(env, Environment)
    check_ready(env)
    assert env.unforkable() == ""
    session = env.reset(env.tasks("train", 1)[0])
    assert session.opening()[0]["content"].startswith("say ") and session.tools == ()
    first = session.step(f"<think>the letter</think> {asked(session)} ")
    assert (first.reward, first.done, first.observation[:4]) == (0.49, False, "say ")
    fork = session.fork()
    last = session.step(asked(session))
    assert (last.reward, last.done, last.won) == (0.49, True, True)
    lost = fork.step("#")
    assert (lost.reward, lost.done, lost.won) == (0.0, True, False)


def test_a_reply_is_a_call_whose_parameters_the_server_tells(url: str) -> None:
    env = OpenenvEnv(url, horizon=3, threshold=0.4, shows=["question"], system="Be brief.")
    session = env.reset(env.tasks("seen", 1)[0])
    (tool,) = session.tools
    assert set(tool["function"]["parameters"]["properties"]) == {"text"}
    assert session.opening()[0] == {"role": "system", "content": "Be brief."}
    for wrong in ("a", '<tool_call>{"name": "act", "arguments": {"txt": 1}}</tool_call>'):
        step = session.step(wrong)
        assert (
            step.observation.startswith("Error: ") and not step.info["admissible"] and step.shown[0]["role"] == "tool"
        )
    step = session.step(f'<tool_call>{{"name": "act", "arguments": {{"text": "{asked_first(session)}"}}}}</tool_call>')
    assert step.done and step.won and step.reward == 0.49  # the horizon ends the episode, and its rewards suffice
    plain = OpenenvEnv(url, format="bfcl_python").reset(env.tasks("seen", 1)[0])
    assert "act(text)" in plain.opening()[0]["content"] and not plain.step("act(text='x')").done


def asked_first(session: ReplayedSession) -> str:
    return str(session.opening()[-1]["content"]).rpartition(" ")[2]


def test_seeds_make_different_tasks_and_openings_repeat(url: str) -> None:
    env = OpenenvEnv(url, field="text")
    tasks = [task for split in ("train", "seen", "unseen") for task in env.tasks(split, 8)]
    assert len({task.id for task in tasks}) == 24 and env.tasks("train", 4) == env.tasks("train", 8)[:4]
    openings = [env.reset(task).opening()[0]["content"] for task in tasks]
    assert openings == [env.reset(task).opening()[0]["content"] for task in tasks] and len(set(openings)) > 1


def test_hostile_replies_raise_nothing(url: str) -> None:
    known = ["e", "aeiost"]
    for env in (OpenenvEnv(url, field="text", horizon=4), OpenenvEnv(url, horizon=4, format="bfcl_python")):
        assert check_hostile(env, env.tasks("train", 5), known, 40, seed=1) == []


def test_failures_of_a_server_are_faults_and_settings_are_told(url: str) -> None:
    def session(**more: Any) -> ReplayedSession:
        env = OpenenvEnv(url, field="text", **more)
        return env.reset(env.tasks("train", 1)[0])

    with pytest.raises(EnvironmentFault, match="broken"):
        session().step("break")
    with pytest.raises(EnvironmentFault, match=r"correct env\.shows"):
        session(shows=["answer"])
    with pytest.raises(InputError, match="no expert"):
        OpenenvEnv(url).demonstrate(OpenenvEnv(url).tasks("train", 1)[0])
    with pytest.raises(InputError, match="is not set"):
        session(key_variable="TURNWISE_NO_SUCH_VARIABLE")
    with pytest.raises(ValueError, match="url"):
        OpenenvEnv("localhost:8000")
    with pytest.raises(InputError, match="does not provide the schema"):
        OpenenvEnv("http://127.0.0.1:9", timeout=5).ready()


def test_a_server_that_goes_away_or_is_full_is_a_fault() -> None:
    with serving(1) as address:
        env = OpenenvEnv(address, field="text")
        first, second = env.tasks("train", 2)
        held = env.reset(first)
        with pytest.raises(EnvironmentFault, match="max_concurrent_envs"):
            env.reset(second)
        held.step("a")
        held.step("a")  # its end gives the session back
        again = env.reset(second)
    with pytest.raises(EnvironmentFault):
        again.step("a")
