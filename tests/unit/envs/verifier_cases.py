"""Tests the functional verifier of an environment with hand-written cases.

An action that the verifier must accept is as good as the expert's action. An action that the verifier must refuse only
looks as good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.env import Environment
from turnwise.errors import InputError
from turnwise.files import read_yaml
from turnwise.types import Task

ACCEPTS, REFUSES = 3, 5  # minimum numbers of actions to accept and of actions to refuse in each case


class Where(BaseModel):
    """Selects the task of a case, either by its data or by its index in the list of tasks of a split."""

    model_config = ConfigDict(extra="forbid")
    split: str = "train"
    data: Mapping[str, Any] | None = None
    seed: int = 0
    index: int = Field(default=0, ge=0)


class Case(BaseModel):
    """One case: a position in an episode, with actions that the verifier must accept and actions that it must refuse.

    ``overrides`` (in the file: ``with``) holds overrides of the environment's configuration. ``after`` holds the
    actions that lead from the start of the episode to the position. ``expert`` is the expert's action at the position,
    which the verifier must also accept.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    about: str
    overrides: Sequence[str] = Field(default=(), alias="with")
    task: Where
    after: Sequence[str] = ()
    expert: str
    accepts: Sequence[str] = Field(min_length=ACCEPTS)
    refuses: Sequence[str] = Field(min_length=REFUSES)


@dataclass(frozen=True, slots=True)
class Cases:
    """The test cases in one file."""

    path: Path
    cases: tuple[Case, ...]

    def wrong(self, make: Callable[[Sequence[str]], Environment]) -> tuple[list[str], list[str]]:
        """Tests the verifier with all cases and returns two lists of messages.

        The first list is about wrongly refused actions, and the second list about wrongly accepted actions.

        Args:
            make: a function that builds the environment from configuration overrides.

        Raises:
            InputError: the actions of ``after`` end the episode, or the task of a case does not exist.
        """
        refused, accepted = [], []
        for number, case in enumerate(self.cases, start=1):
            environment = make(case.overrides)
            where = f"{self.path}:case {number} ({case.about})"
            session = self._stand(environment, case, where)
            refused += [
                f"{where}: the verifier refuses {action!r}"
                for action in (case.expert, *case.accepts)
                if not environment.accepts(session, action, case.expert)
            ]
            accepted += [
                f"{where}: the verifier accepts {action!r}"
                for action in case.refuses
                if environment.accepts(session, action, case.expert)
            ]
        return refused, accepted

    def _stand(self, environment: Environment, case: Case, where: str) -> Any:
        task = case.task
        if task.data is not None:
            chosen = Task(environment.name, f"{task.split}/case", task.split, task.data)
        else:
            chosen = environment.tasks(task.split, task.index + 1, task.seed)[task.index]
        session = environment.reset(chosen)
        for action in case.after:
            session.step(action)
            if session.done:
                raise InputError(f"{where}: the action {action!r} in 'after' ends the episode; remove it from 'after'")
        return session


def read_cases(path: Path) -> Cases:
    """Reads the test cases of a verifier from a file.

    Raises:
        InputError: the file is missing, is not YAML, or does not hold a list of cases.
    """
    try:
        raw = read_yaml(path)
    except OSError as error:
        raise InputError(f"{path}: the file cannot be read ({error.strerror}); correct the path") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}; correct the file") from error
    try:
        if not isinstance(raw, list) or not raw:
            raise InputError(f"{path}: the file must be a list of cases, with at least one; see docs/environments.md")
        return Cases(path, tuple(Case.model_validate(item) for item in raw))
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; see docs/environments.md"
        ) from error
