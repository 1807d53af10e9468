"""Tests the functional verifier of an environment with hand-written cases (docs/environments.md).

An action that the verifier must accept is as good as the expert's action. An action that the verifier must refuse only
looks as good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from turnwise.env import Environment
from turnwise.files import read_yaml
from turnwise.types import Task


class Where(BaseModel):
    """Selects the task of a case, either by its data or by its index in the list of tasks of a split."""

    model_config = ConfigDict(extra="forbid")
    split: str = "train"
    data: Mapping[str, Any] | None = None
    seed: int = 0
    index: int = 0


class Case(BaseModel):
    """A position in an episode: ``after`` holds the actions that lead there, ``overrides`` (in the file: ``with``) the
    configuration of the environment. ``expert`` is the expert's action there, which the verifier must also accept.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    about: str
    overrides: Sequence[str] = Field(default=(), alias="with")
    task: Where
    after: Sequence[str] = ()
    expert: str
    accepts: Sequence[str] = Field(min_length=3)
    refuses: Sequence[str] = Field(min_length=5)

    def wrong(self, make: Callable[[Sequence[str]], Environment]) -> list[str]:
        """One message for each action about which the verifier errs. ``make`` builds the environment from overrides."""
        env, task = make(self.overrides), self.task
        if task.data is None:
            chosen = env.tasks(task.split, task.index + 1, task.seed)[task.index]
        else:
            chosen = Task(env.name, f"{task.split}/case", task.split, task.data)
        session = env.reset(chosen)
        for action in self.after:
            session.step(action)
            assert not session.done, f"{self.about}: the action {action!r} in 'after' ends the episode"
        both = {self.expert, *self.accepts} & {*self.refuses}
        assert not both, f"{self.about}: {both} cannot be both accepted and refused"
        expected = dict.fromkeys((self.expert, *self.accepts), True) | dict.fromkeys(self.refuses, False)
        return [
            f"{self.about}: {action!r} is {'refused' if right else 'accepted'}"
            for action, right in expected.items()
            if env.accepts(session, action, self.expert) != right
        ]


def read_cases(path: Path) -> Sequence[Case]:
    return TypeAdapter(list[Case]).validate_python(read_yaml(path))
