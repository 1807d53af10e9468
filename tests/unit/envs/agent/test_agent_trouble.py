"""Agents that fail, hang up, end early, cheat or are set up wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial

import pytest

from turnwise.env import EnvironmentFault
from turnwise.errors import InputError
from turnwise.rollouts.episodes import EnvironmentCalls
from turnwise_worlds.agent import AgentEnv
from turnwise_worlds.sandbox.sandbox import Limits
from turnwise_worlds.workspace import Box

Make = Callable[..., AgentEnv]


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("raise SystemExit('no key')", "no key"),
        ("import time; time.sleep(60)", "time"),
        ("import nothing_like_it", "nothing_like_it"),
    ],
)
def test_an_agent_that_asks_nothing_is_refused_before_the_run(agent: Make, program: str, says: str) -> None:
    env = agent(program, box=Box(limits=Limits(seconds=3, memory_mib=256)))
    with pytest.raises(InputError, match=says):
        env.ready()


def test_an_agent_that_dies_in_the_middle_is_scored(agent: Make) -> None:
    env = agent("ask([{'role': 'user', 'content': 'a'}])\nraise SystemExit(3)", score="echo broken; echo 0.25")
    step = env.reset(env.tasks("train", 1)[0]).step("x")
    assert (step.done, step.won, step.reward, step.info["status"]) == (True, False, 0.25, 3)


@pytest.mark.parametrize(
    ("end", "stopped"), [("raise SystemExit(3)", ""), ("import time; time.sleep(60)", "time")], ids=["crash", "limit"]
)
def test_an_agent_that_fails_before_it_is_scored_earns_nothing(agent: Make, end: str, stopped: str) -> None:
    env = agent(f"ask([{{'role': 'user', 'content': 'a'}}])\n{end}", box=Box(limits=Limits(seconds=2, memory_mib=256)))
    step = env.reset(env.tasks("train", 1)[0]).step("x")
    assert (step.done, step.won, step.reward, step.info["stopped"]) == (True, False, 0.0, stopped)
    assert step.info["unscored"]


def test_an_agent_that_ends_while_the_policy_writes_is_a_fault_and_is_repeated(agent: Make, counting: str) -> None:
    """Its time ran out through no fault of the action, so the same session can take it again."""
    env = agent(counting, box=Box(limits=Limits(seconds=2, memory_mib=256)))
    session = env.reset(env.tasks("train", 1)[0])
    session.step("1")
    time.sleep(3)
    with pytest.raises(EnvironmentFault):
        session.step("2")
    assert session.step("2").observation == "yes"


def test_a_client_that_hangs_up_and_asks_again_gets_the_reply_that_is_its_due(agent: Make) -> None:
    env = agent("""
import socket
def late(messages):
    try:
        return ask(messages)
    except (TimeoutError, OSError):
        socket.setdefaulttimeout(None)
        return ask(messages)
socket.setdefaulttimeout(0.5)
first = [{"role": "user", "content": "a"}]
reply = late(first)
ask([*first, reply, {"role": "user", "content": "b"}])
open("score.txt", "w").write("1")
""")
    session = env.reset(env.tasks("train", 1)[0])
    time.sleep(1.5)  # the policy is slow
    step = session.step("x")
    assert (step.observation, step.conversation) == ("b", ())
    assert session.step("y").won


def test_a_program_that_waits_is_ended_with_its_step(agent: Make) -> None:
    env = agent("ask([{'role': 'user', 'content': 'a'}])\nimport time; time.sleep(60)")
    session = env.reset(env.tasks("train", 1)[0])
    answers = EnvironmentCalls(2, 1.0)
    begun = answers.start(partial(session.step, "x"), session)
    began = time.monotonic()
    with pytest.raises(EnvironmentFault):
        asyncio.run(answers.wait(begun))
    other = env.reset(env.tasks("train", 1)[0])
    under_way = answers.start(partial(other.step, "x"), other)
    time.sleep(0.5)
    answers.close()
    for each in (begun, under_way):
        assert each.answer is not None
        with contextlib.suppress(Exception):
            each.answer.result(20)
    assert time.monotonic() - began < 20
