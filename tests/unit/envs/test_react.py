"""ReAct prompts: the parser, and a scripted chat model that plays whole episodes of the household and of ALFWorld."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from turnwise.env import Environment
from turnwise.methods.gate import symbol
from turnwise.types import Message, Task
from turnwise_worlds.alfworld import AlfworldEnvironment
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.text_games import SYSTEM, command_of


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("Thought: I need a mug.\nAction: go to shelf 1", "go to shelf 1"),
        ("thought: none\nACTION:   open fridge 1. \nObservation: it is open", "open fridge 1"),
        ("**Action:** `take mug 1 from shelf 1`", "take mug 1 from shelf 1"),
        ("Action: look\nThought: no, I know this.\nAction: go to desk 2", "go to desk 2"),
        ("<think>Action: look</think>Thought: done.\nAction: inventory", "inventory"),
        ("<think>Action: look</think>I look around.", ""),
        ("<think>Action: look", ""),
        ("go to shelf 1", ""),
        ("Action:\ngo to shelf 1", ""),
    ],
)
def test_the_command_is_parsed(reply: str, command: str) -> None:
    assert command_of(reply) == command


def chat_model(messages: Sequence[Message]) -> str:
    """Places one object: it reads nothing but the chat, walks from place to place, and answers as the prompt asks."""
    assert messages[0] == {"role": "system", "content": SYSTEM} and messages[-1]["role"] == "user"
    intro, seen = str(messages[1]["content"]), str(messages[-1]["content"])
    thing, goal = re.search(r"put (?:a|some) (\w+) (?:in|on) (\w+)\.", intro).groups()
    done = [command_of(str(m["content"])) for m in messages if m["role"] == "assistant"]
    places = re.findall(r"a (\w+ \d+)", intro.partition("\n")[0])
    here = next((c.removeprefix("go to ") for c in reversed(done) if c.startswith("go to ")), "")
    held = next((c.split(" from ")[0].removeprefix("take ") for c in done if c.startswith("take ")), None)
    found = re.search(rf"a ({thing} \d+)", seen) if messages[-1] is not messages[1] else None
    if "is closed" in seen:
        command = f"open {here}"
    elif held and here.startswith(f"{goal} "):
        command = f"move {held} to {here}"
    elif held:
        command = next(f"go to {place}" for place in places if place.startswith(f"{goal} "))
    elif found and not here.startswith(f"{goal} "):
        command = f"take {found[1]} from {here}"
    else:
        command = next(f"go to {place}" for place in places if f"go to {place}" not in done)
    return f"Thought: I hold {held or 'nothing'}.\nAction: {command}"


def played(env: Environment, task: Task) -> tuple[list[Message], bool]:
    session = env.reset(task)
    messages = session.opening()
    while not session.done:
        reply = chat_model(messages)
        messages += [{"role": "assistant", "content": reply}, *session.step(reply).shown]
    return messages, session.won


def simple_task(env: Environment) -> Task:
    return next(task for task in env.tasks("train", 40) if task.subset == "pick_and_place_simple")


def test_a_chat_model_plays_the_household() -> None:
    env = HouseholdEnv(prompt="react")
    task = simple_task(env)
    messages, won = played(env, task)
    assert won and "Nothing happens." not in {message["content"] for message in messages}
    session = env.reset(task)
    bare = session.step("go to " + re.findall(r"a (\w+ \d+)", session.intro())[0])
    assert bare.observation == "Nothing happens." and session.turns == 1
    assert HouseholdEnv().reset(task).opening() == messages[1:2]


def test_demonstrations_and_verifiers_have_the_form_too() -> None:
    env = HouseholdEnv(prompt="react")
    trajectory = env.demonstrate(env.tasks("train", 1)[0])
    first = str(next(m["content"] for m in trajectory.messages if m["role"] == "assistant"))
    assert trajectory.success and first.startswith("Action: ")
    session = env.reset(trajectory.task)
    reply = f"Thought: here it may be.\n{first}"
    assert env.accepts(session, reply, first) and env.same(reply, first)
    assert not env.accepts(session, command_of(first), first) and not env.same(command_of(first), first)
    assert symbol(reply) == symbol(first) == command_of(first)


class Engine:
    """Answers as a worker with ALFWorld's engine does; its games are tasks of the household."""

    def __init__(self, horizon: int) -> None:
        self.env, self.sessions, self.numbers = HouseholdEnv(horizon), {}, count()

    def call(self, op: str, at: int = -1, game: Any = None, action: str = "") -> dict[str, Any]:
        if op == "step":
            observation = self.sessions[at].step(action).observation
            return self.reply(at, observation)
        session = self.env.reset(game) if op == "open" else self.sessions[at].fork()
        number = next(self.numbers)
        self.sessions[number] = session
        return self.reply(number, session.intro())

    def reply(self, at: int, observation: str) -> dict[str, Any]:
        session = self.sessions[at]
        world, state = session.world, session.state
        possible = [text for text, command in world.commands.items() if state.admits(world, command)]
        return {"id": at, "observation": observation, "won": session.won, "admissible": possible}

    def free(self, at: int) -> None:
        pass


class Alfworld(AlfworldEnvironment):
    def _open(self, games: object) -> Any:
        self.engine = Engine(self.horizon)
        return self

    def game(self, task: Task) -> Task:
        return task

    def begin(self, task: Task) -> Any:
        self.pool.worker = lambda: self.engine  # type: ignore[method-assign,assignment,return-value]
        return super().begin(task)


def test_a_chat_model_plays_alfworld() -> None:
    household = HouseholdEnv(prompt="react")
    task = simple_task(household)
    env = Alfworld(horizon=30, prompt="react")
    env.name = "household"
    messages, won = played(env, task)
    assert (messages, won) == (played(household, task)[0], True)
    session = env.reset(task)
    assert session.step("take everything").observation == "Nothing happens." and not session.won
    twin = session.fork()
    twin.step(str(messages[2]["content"]))
    assert (session.actions, len(twin.actions), twin.react) == (("",), 2, True)
