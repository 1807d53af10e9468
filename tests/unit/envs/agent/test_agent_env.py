"""Programs in the sandbox as episodes: turns, conversations that begin anew, forks by replay, scores, and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from turnwise.env import EnvironmentFault
from turnwise.errors import InputError
from turnwise.rollouts.episodes import EnvironmentCalls
from turnwise_worlds.agent import AgentEnv
from turnwise_worlds.replayed_episodes import ReplayDiffersError
from turnwise_worlds.sandbox.sandbox import Limits
from turnwise_worlds.workspace import Box

Make = Callable[..., AgentEnv]


def test_requests_are_turns_and_the_score_is_paid_at_the_end(agent: Make, counting: str) -> None:
    env = agent(counting)
    (task,) = env.tasks("train", 1)
    session = env.reset(task)
    assert session.opening() == [{"role": "user", "content": "count to 3"}]
    one, two, three = (session.step(text) for text in ("1", "5", "3"))
    assert [(m["role"], m["content"]) for m in (*one.shown, *two.shown)] == [("user", "yes"), ("user", "no")]
    assert (one.done, two.done, three.done) == (False, False, True)
    assert three.reward == pytest.approx(2 / 3)
    assert not three.won
    won = env.reset(task)  # the first request is known, so that nothing has started yet
    assert [won.step(text).won for text in "123"] == [False, False, True]


def test_a_fork_repeats_the_prefix_in_a_program_of_its_own(agent: Make, counting: str) -> None:
    env = agent(counting)
    session = env.reset(env.tasks("train", 1)[0])
    session.step("1")
    fork = session.fork()
    assert session.step("2").observation == "yes"
    assert fork.step("x").observation == "no"  # the parent has gone on, so a second program was brought here
    assert session.step("3").won
    assert fork.step("3").reward == pytest.approx(2 / 3)


def test_a_program_that_goes_its_own_way_cannot_be_forked(agent: Make) -> None:
    env = agent(
        "import time\nr = ask([{'role': 'user', 'content': 'a'}])\nask([{'role': 'user', 'content': str(time.time())}])"
    )
    session = env.reset(env.tasks("train", 1)[0])
    session.step("x")
    fork = session.fork()
    with pytest.raises(InputError):  # it ended well, but left no score
        session.step("y")
    with pytest.raises(ReplayDiffersError):
        fork.step("y")
    other = agent("import time\nask([{'role': 'user', 'content': str(time.time())}])")
    with pytest.raises(ReplayDiffersError):
        other.ready()


def test_a_request_that_changes_what_was_said_begins_anew(agent: Make) -> None:
    """An agent that keeps a summary, then changes its tools, then asks twice at once."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    env = agent(f"""
import threading
first = [{{"role": "system", "content": "s"}}, {{"role": "user", "content": "long"}}]
reply = ask(first)
summary = [first[0], {{"role": "user", "content": "short"}}]
reply = ask(summary)
summary += [reply, {{"role": "user", "content": "more"}}]
ask(summary, tools=[{tool!r}])
threads = [threading.Thread(target=ask, args=([{{"role": "user", "content": "side"}}],)) for _ in range(2)]
for each in threads: each.start()
for each in threads: each.join()
open("score.txt", "w").write("1")
""")
    session = env.reset(env.tasks("train", 1)[0])
    steps = [session.step(text) for text in "abcde"]
    said = [[m["content"] for m in step.conversation] for step in steps]
    assert said == [["s", "short"], ["s", "short", "b", "more"], ["side"], ["side"], []]
    assert [step.info.get("anew", False) for step in steps] == [True, True, True, True, False]
    assert steps[-1].won


def test_tools_are_those_of_the_request_that_waits(agent: Make) -> None:
    env = agent("""
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
messages = [{"role": "user", "content": "?"}]
reply = ask(messages, tools=[tool])
messages += [reply, *({"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in reply["tool_calls"])]
ask(messages, tools=[tool])
open("score.txt", "w").write("1")
""")
    session = env.reset(env.tasks("train", 1)[0])
    assert [tool["function"]["name"] for tool in session.tools] == ["f"]
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    step = session.step(f"{call}{call}")
    assert [(m["role"], m["content"], m["tool_call_id"]) for m in step.messages] == [
        ("tool", "done", "call_0_0"),
        ("tool", "done", "call_0_1"),
    ]
    known = env.reset(env.tasks("train", 1)[0])
    assert known.tools == session.tools
    assert env.accepts(known, f"x {call}", call)
    assert not env.accepts(known, "x", call)
    assert env.accepts(known, " x", "x")
    assert session.step("bye").done


def test_the_score_sees_hidden_files_and_the_agent_does_not(agent: Make) -> None:
    task = {
        "id": "a",
        "question": "?",
        "files": {"data/x.txt": "4"},
        "hidden": {"truth.txt": "42", "data/x.txt/y": "1"},
    }
    env = agent(
        """
import os
assert "hidden" not in task and not os.path.exists("truth.txt"), os.listdir()
reply = ask([{"role": "user", "content": task["question"] + open("data/x.txt").read()}])
open("answer.txt", "w").write(reply["content"])
open("truth.txt", "w").write("43")
""",
        json.dumps(task) + "\n",
        score="cmp -s answer.txt truth.txt && echo 1 || echo 0",
    )
    task_ = env.tasks("train", 1)[0]
    assert env.reset(task_).opening()[0]["content"] == "?4"
    assert env.reset(task_).step("42").won
    assert not env.reset(task_).step("43").won


def test_nothing_but_the_gateway_can_be_reached(agent: Make) -> None:
    """Not the host's servers, not the world, not the host's abstract sockets, and no other kind of socket is made."""
    program = """
import socket
def tries(family, address):
    try:
        socket.socket(family, socket.SOCK_STREAM).connect(address)
        return "reached"
    except OSError as error:
        return type(error).__name__
found = [tries(socket.AF_INET, address) for address in (("127.0.0.1", task["port"]), ("192.0.2.1", 80))]
found.append(tries(socket.AF_UNIX, chr(0) + "turnwise-test"))
for family in (socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_RAW)
        found.append("made")
    except OSError as error:
        found.append(type(error).__name__)
ask([{"role": "user", "content": " ".join(found)}])
"""
    with socket.create_server(("127.0.0.1", 0)) as outside, socket.socket(socket.AF_UNIX) as named:
        named.bind("\0turnwise-test")
        named.listen()
        env = agent(program, json.dumps({"id": "a", "port": outside.getsockname()[1]}) + "\n")
        (opening,) = env.reset(env.tasks("train", 1)[0]).opening()
    said = opening["content"].split()
    assert len(said) == 6
    assert not {"reached", "made"} & set(said)


def test_a_dropped_session_ends_its_program(agent: Make) -> None:
    env = agent("ask([{'role': 'user', 'content': 'a'}])")
    before = set(threading.enumerate())
    session = env.reset(env.tasks("train", 1)[0])
    session.opening()
    (program,) = [thread for thread in threading.enumerate() if thread.name == "agent" and thread not in before]
    del session
    gc.collect()
    end = time.monotonic() + 20
    while program.is_alive():
        assert time.monotonic() < end, "the program still runs"
        time.sleep(0.05)


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
