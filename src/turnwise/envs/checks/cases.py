"""Hand-written cases of a verifier: a place in an episode, what is as good as the expert's action there, and what only looks so.

An environment has them in a file: ``checks.yaml`` beside the module of its class, or ``<module>.checks.yaml`` where
several environments share a folder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.envs.environment import Environment
from turnwise.errors import InputError
from turnwise.files import read_yaml
from turnwise.types import Task

ACCEPTS, REFUSES = 3, 5  # how many a case must have


class Where(BaseModel):
    """A task: its data, or its place in the list of a split."""

    model_config = ConfigDict(extra="forbid")
    split: str = "train"
    data: Mapping[str, Any] | None = None
    seed: int = 0
    index: int = Field(default=0, ge=0)


class Case(BaseModel):
    """One place in an episode.

    ``with`` are overrides of the environment's configuration, ``after`` the actions that lead to the place.
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
    """The cases of a file."""

    path: Path
    cases: tuple[Case, ...]

    def wrong(self, make: Callable[[Sequence[str]], Environment]) -> tuple[list[str], list[str]]:
        """Returns what the verifier refuses and should accept, and what it accepts and should refuse.

        Args:
            make: overrides -> the environment.

        Raises:
            InputError: the actions of ``after`` end the episode, or there is no such task.
        """
        refused, accepted = [], []
        for number, case in enumerate(self.cases, start=1):
            environment = make(case.overrides)
            where = f"{self.path}:case {number} ({case.about})"
            session = self._stand(environment, case, where)
            refused += [
                f"{where}: refuses {action!r}"
                for action in (case.expert, *case.accepts)
                if not environment.accepts(session, action, case.expert)
            ]
            accepted += [
                f"{where}: accepts {action!r}"
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
                raise InputError(f"{where}: the episode ends after {action!r}; correct 'after'")
        return session


def case_file(environment: Environment) -> Path | None:
    """Returns the file of cases of an environment: the file that it names as ``cases``, or one beside its module; else None."""
    if (named := getattr(environment, "cases", None)) is not None:
        return Path(named)
    module = Path(inspect.getfile(type(environment)))
    candidates = (module.with_suffix(".checks.yaml"), module.with_name("checks.yaml"))
    return next((path for path in candidates if path.is_file()), None)


def read_cases(path: Path) -> Cases:
    """Returns the cases of a file.

    Raises:
        InputError: it is missing, no YAML, or not a list of cases.
    """
    try:
        raw = read_yaml(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error
    try:
        if not isinstance(raw, list) or not raw:
            raise InputError(f"{path}: not a list of cases; see docs/environments.md")
        return Cases(path, tuple(Case.model_validate(item) for item in raw))
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; see docs/environments.md"
        ) from error
