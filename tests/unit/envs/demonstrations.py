"""Checks that an expert's actions succeed again in a fresh episode, and that a fork does not change its parent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.toolcalls import Format, write_calls
from turnwise.env import Environment, Session
from turnwise.types import Message, Task, ToolCall


def as_written(message: Message, form: Format) -> str:
    """Returns an assistant message as the text that the policy would write. The inverse of ``said`` of the tools."""
    calls = [function_of(call) for call in message.get("tool_calls") or ()]
    if not calls:
        return str(message["content"])
    return write_calls([ToolCall(str(call["name"]), arguments_of(call)) for call in calls], form)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of repeating the actions of one demonstration in a fresh episode."""

    task: Task
    actions: tuple[str, ...]
    observations: tuple[str, ...]  # the observations in the fresh episode
    won: bool  # whether the fresh episode was won
    alike: bool  # whether the fresh episode gave the same observations as the demonstration
    accepted: tuple[bool, ...]  # for each of the expert's actions, whether the verifier accepts it


def replay(environment: Environment, task: Task, seed: int = 0, verify: bool = True) -> Replayed:
    """Repeats the actions of the good expert, whose seed is ``seed``, in a fresh episode."""
    trajectory = environment.demonstrate(task, "good", seed)
    session = environment.reset(task)
    form: Format = getattr(session, "form", "hermes")
    actions = tuple(as_written(m, form) for m in trajectory.messages if m["role"] == "assistant")
    told = _told(trajectory.messages[len(session.opening()) :])
    observations: list[str] = []
    accepted = []
    for action in actions:
        if session.done:
            break
        if verify:
            accepted.append(environment.accepts(session, action, action))
        observations.append(session.step(action).observation)
    alike = len(observations) == len(actions) and observations[: len(told)] == told
    return Replayed(task, actions, tuple(observations), session.won, alike, tuple(accepted))


def _told(messages: Sequence[Message]) -> list[str]:
    """The observations after the expert's replies; answers to several calls of one reply are joined by line breaks."""
    told: list[list[str]] = []
    for message in messages:
        if message["role"] == "assistant":
            told.append([])
        else:
            told[-1].append(str(message["content"]))
    return ["\n".join(answers) for answers in told if answers]


def check_forks(
    environment: Environment, replayed: Sequence[Replayed], others: Sequence[str], rng: random.Random
) -> list[str]:
    """Returns one message for each session that its forks or its parent have influenced.

    The expert's actions are played up to a random turn, where the session is forked twice. The first fork and a fork of
    it take random actions from ``others``. After that, the parent and the second fork continue with the expert's
    actions, and must get the observations and the outcome of an episode without forks.
    """
    problems = []
    for episode in replayed:
        at = rng.randrange(len(episode.actions))
        parent = environment.reset(episode.task)
        for action in episode.actions[:at]:
            parent.step(action)
        stray, twin = parent.fork(), parent.fork()
        _wander(stray, others, environment.horizon, rng)
        where = f"task {episode.task.id}, forked after {at} turns"
        for name, session in (("the parent session", parent), ("a fork that follows the expert", twin)):
            seen = []
            for action in episode.actions[at : len(episode.observations)]:
                if session.done:
                    break
                seen.append(session.step(action).observation)
            if tuple(seen) != episode.observations[at:] or session.won != episode.won:
                problems.append(f"{where}: {name} gets other observations or another outcome than without a fork")
    return problems


def _wander(session: Session, actions: Sequence[str], horizon: int, rng: random.Random) -> None:
    """Plays a session and a fork of the session, by turns, with random actions until both episodes end."""
    strays = [session, session.fork()]
    for _ in range(horizon):
        for stray in strays:
            if not stray.done:
                stray.step(rng.choice(actions))
