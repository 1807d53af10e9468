"""Turns the tasks of ``env=household`` into games of the ALFWorld engine, with the experts of ``env=household``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnwise.envs.alfworld.pddl_problem import Scene, problem
from turnwise.envs.alfworld.session import AlfworldSession
from turnwise.envs.environment import Quality
from turnwise.envs.household import HouseholdEnv
from turnwise.types import Task


def scene(data: Mapping[str, Any]) -> Scene:
    """Returns the scene that ``data``, the data of a task of ``env=household``, describes."""
    goal = {"object": data["goal"]["object"]}
    if data["goal"]["toggle"]:
        goal["lamp"] = data["goal"]["toggle"]
    if data["goal"]["receptacle"]:
        goal["receptacle"] = data["goal"]["receptacle"]
    return Scene(tuple(data["receptacles"]), dict(data["objects"]), data["goal"]["type"], goal, data["text"])


class GeneratedGames:
    """Provides the tasks of ``env=household`` to the ALFWorld engine."""

    def __init__(self, horizon: int) -> None:
        self._household = HouseholdEnv(horizon)

    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return self._household.tasks(split, count, seed)

    def game(self, task: Task) -> dict[str, str]:
        """Returns a task's PDDL problem and the task in words, from which the worker process builds the game.

        Raises:
            ValueError: the task's data does not describe a task of ``env=household``.
        """
        try:
            built = scene(task.data)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"task {task.id}: its data is not a task of env=household ({error!r})") from None
        return {"problem": problem(built), "sentence": built.sentence}

    def expert(self, session: AlfworldSession, quality: Quality, seed: int) -> list[str]:
        """Returns the actions with which the expert of ``env=household`` solves the session's task."""
        shown = self._household.demonstrate(_household(session.task), quality, seed)
        return [message["content"] for message in shown.messages if message["role"] == "assistant"]

    def accepts(self, session: AlfworldSession, action: str, expert: str) -> bool:
        """Returns whether the functional verifier of ``env=household`` accepts ``action``.

        The session's actions are first repeated in an episode of ``env=household``, which this verifier needs.
        """
        twin = self._household.replay(_household(session.task), session.actions)
        return self._household.accepts(twin, action, expert)


def _household(task: Task) -> Task:
    return replace(task, env=HouseholdEnv.name)
