"""Reads the task files of ``env=mcp``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.envs.data_files import read_data_file
from turnwise.envs.environment import check_split
from turnwise.envs.search.retrieval import normalise
from turnwise.errors import InputError
from turnwise.types import Task, ToolCall

_NUMBER = re.compile(r"([-+\u2212]?)[$\u20ac\u00a3]?((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)\s*(%?)", re.ASCII)
_AROUND = " \t\r\n*_`'\"()[]!?:;,"  # characters that may surround a number


class Call(BaseModel):
    """A tool call in a task file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)

    def made(self) -> ToolCall:
        return ToolCall(self.name, self.arguments)


class Check(Call):
    """A call that is made at the end of an episode, and the text that it must return."""

    result: str

    def holds(self, text: str) -> bool:
        """Returns whether ``text``, the tool's answer to this call, is the expected result.

        If both texts are JSON, their JSON values must be equal. Otherwise their words must be equal, in order.
        """
        try:
            return _alike(json.loads(text), json.loads(self.result))
        except (ValueError, RecursionError):
            return text.split() == self.result.split()


class Problem(BaseModel):
    """The content of one task of ``env=mcp``.

    Attributes:
        prompt: the user's request.
        setup: calls that are made before the policy's first call.
        answer: the right answer, or a list of right answers, one of which the policy's last reply must give. None means
            that any reply is right.
        check: a call that is made at the end of the episode, and the text that it must return; None means no check.
        calls: the tool calls that solve the task and that the expert makes; None if they are not known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    prompt: str
    setup: tuple[Call, ...] = ()
    answer: str | tuple[str, ...] | None = None
    check: Check | None = None
    calls: tuple[Call, ...] | None = None

    @property
    def answers(self) -> tuple[str, ...]:
        """Returns the right answers; empty if any reply is right."""
        return () if self.answer is None else (self.answer,) if isinstance(self.answer, str) else self.answer

    def answered(self, text: str) -> bool:
        """Returns whether a reply of the policy gives one of the right answers.

        If the right answer is a number, the reply must consist of this number, with its sign and percent sign. Other
        texts are compared after case, punctuation, articles and whitespace are normalised as in SQuAD.
        """
        return not self.answers or any(_says(text, answer) for answer in self.answers)


def _says(text: str, answer: str) -> bool:
    expected = _number(answer)
    return normalise(text) == normalise(answer) if expected is None else _number(text) == expected


def _number(text: str) -> tuple[Decimal, str] | None:
    """Returns the value and the percent sign of a text that consists only of a number; None for other texts."""
    found = _NUMBER.fullmatch(text.strip(_AROUND).removesuffix(".").strip(_AROUND))
    if found is None:
        return None
    sign, digits, unit = found.groups()
    value = Decimal(digits.replace(",", ""))
    return (value if sign in ("", "+") else -value), unit


def _alike(one: Any, other: Any) -> bool:
    """Returns whether two JSON values are equal. ``true`` does not equal 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def problem_of(data: Mapping[str, Any], where: str) -> Problem:
    """Returns the problem that a task's data describes.

    Raises:
        InputError: a field is missing, unknown or of the wrong type, neither ``answer`` nor ``check`` is given, or an
            answer contains no word or number.
    """
    try:
        problem = Problem.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}; see docs/environments.md"
        ) from None
    if not problem.answers and problem.check is None:
        raise InputError(f"{where}: the task has neither answer nor check, so it cannot be judged; add one of them")
    if empty := [answer for answer in problem.answers if not normalise(answer)]:
        raise InputError(
            f"{where}: answer: {empty[0]!r} contains no word or number to compare a reply with; correct the answer"
        )
    return problem


def read_tasks(path: str | Path, env: str) -> dict[str, list[Task]]:
    """Returns the tasks in a file: split -> its tasks, in the order of the file.

    Each record has ``id``, ``split``, optionally ``subset``, and the fields of :class:`Problem`.

    Raises:
        InputError: the file cannot be read, a record does not describe a task, or an id occurs twice.
    """
    tasks: dict[str, list[Task]] = {}
    seen: dict[str, str] = {}
    for place, record in read_data_file(path, "env.file"):
        head = {key: record.pop(key, "") for key in ("id", "split", "subset")}
        if not all(isinstance(value, str) for value in head.values()) or not head["id"]:
            raise InputError(f"{place}: id, split and subset must be texts, and id and split are required")
        try:
            check_split(head["split"])
        except ValueError as error:
            raise InputError(f"{place}: {error}") from None
        if head["id"] in seen:
            raise InputError(f"{place}: the id {head['id']!r} is used by {seen[head['id']]} too; rename one")
        seen[head["id"]] = place
        problem_of(record, place)
        tasks.setdefault(head["split"], []).append(Task(env, head["id"], head["split"], record, head["subset"]))
    if not tasks:
        raise InputError(f"{path}: the file contains no task; set env.file to a file with one task per record")
    return tasks
