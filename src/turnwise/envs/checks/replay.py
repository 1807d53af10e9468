"""Checks that an expert's actions lead to success again, and that the actions of a fork do not change its parent."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.data.toolcalls.formats import Format
from turnwise.envs.environment import Environment, Session
from turnwise.envs.tools import as_written
from turnwise.types import Message, Task


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of repeating one demonstrated task from its actions alone."""

    task: Task
    actions: tuple[str, ...]
    observations: tuple[str, ...]  # the observations of the repetition
    won: bool
    alike: bool  # whether the repetition gave the same observations as the demonstration
    accepted: tuple[bool, ...]  # the verifier's verdict on each of the expert's own actions


def replay(environment: Environment, task: Task, seed: int = 0, verify: bool = True) -> Replayed:
    """Lets the good expert demonstrate the task, then repeats its actions in a fresh episode.

    Args:
        verify: whether to ask the verifier about each action. If not, ``accepted`` is empty.
    """
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
    """Returns the observation after each reply.

    If a reply made several calls, their answers are joined by line breaks.
    """
    told: list[list[str]] = []
    for message in messages:
        if message["role"] == "assistant":
            told.append([])
        else:
            told[-1].append(str(message["content"]))
    return ["\n".join(answers) for answers in told if answers]


def steps_per_second(environment: Environment, replayed: Sequence[Replayed]) -> float:
    """Returns the number of steps per second of time spent in ``step``, measured on the experts' actions.

    ``environment`` must not have played these tasks before, so that no cached result shortens the time.
    """
    steps, seconds = 0, 0.0
    for episode in replayed:
        session = environment.reset(episode.task)
        start = time.perf_counter()
        for action in episode.actions[: len(episode.observations)]:
            session.step(action)
        seconds += time.perf_counter() - start
        steps += len(episode.observations)
    return steps / max(seconds, 1e-9)


def check_forks(
    environment: Environment, replayed: Sequence[Replayed], others: Sequence[str], rng: random.Random
) -> list[str]:
    """Checks that forks are independent and returns descriptions of what is wrong; empty if nothing is.

    The expert's episode of each task is forked at a random turn. One fork, and a fork of it, take other actions to the
    end. The parent must then get exactly the same observations as without them. A second fork follows the expert and
    must get them too.

    Args:
        others: actions for the forks that leave the expert's path.
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
        for name, session in (("the parent", parent), ("a fork that follows the expert", twin)):
            seen = []
            for action in episode.actions[at : len(episode.observations)]:
                if session.done:
                    break
                seen.append(session.step(action).observation)
            if tuple(seen) != episode.observations[at:] or session.won != episode.won:
                problems.append(f"{where}: {name} does not see what it saw without a fork")
    return problems


def _wander(session: Session, actions: Sequence[str], horizon: int, rng: random.Random) -> None:
    """Plays a session and a fork of it to their ends with random actions, one step of each in turn."""
    strays = [session, session.fork()]
    for _ in range(horizon):
        for stray in strays:
            if not stray.done:
                stray.step(rng.choice(actions))
