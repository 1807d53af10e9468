"""Reads the tasks of ``env=agent`` from a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwise.data.read_records import UnusableError, read_records
from turnwise.errors import InputError
from turnwise.sandbox.folder_value import File, Tree, tree_of
from turnwise.types import Task

TASK = "task.json"
"""The name of the file in which an agent program finds its task."""


class Row(BaseModel):
    """One line of the tasks file. ``task.json`` passes on further keys to the agent program.

    Attributes:
        id: the task's id, unique within its split.
        split: train, seen or unseen.
        files: path -> text of a file that the agent program finds in its folder.
        hidden: path -> text of a file that is added to the folder before the score is computed, and that the agent
            program never sees.
    """

    model_config = ConfigDict(extra="allow")
    id: str = Field(min_length=1)
    split: str = Field(default="train", pattern="^(train|seen|unseen)$")
    files: Mapping[str, str] = {}
    hidden: Mapping[str, str] = {}


def read_tasks(path: Path, env: str) -> dict[str, list[Task]]:
    """Returns the tasks in a file: split -> its tasks, in the order of the file.

    Raises:
        InputError: the file is missing or has no tasks, a line does not describe a task, or a task occurs twice.
    """
    found: dict[str, list[Task]] = {"train": [], "seen": [], "unseen": []}
    seen: set[str] = set()
    for place, record in read_records(path, key="env.tasks_file", kind="task file"):
        if isinstance(record, UnusableError):
            raise InputError(f"env.tasks_file: {place}: {record}; {record.remedy}")
        try:
            row = Row.model_validate(record)
            for files in (row.files, row.hidden):
                _check(files)
        except (ValidationError, ValueError) as error:
            raise InputError(f"env.tasks_file: {place} is not a valid task: {_first(error)}") from error
        name = f"{row.split}/{row.id}"
        if name in seen:
            raise InputError(
                f"env.tasks_file: {place}: the task {row.id!r} of split {row.split} occurs twice; rename one of the two"
            )
        seen.add(name)
        found[row.split].append(Task(env, name, row.split, dict(record)))
    if not seen:
        raise InputError(f"env.tasks_file: {path} contains no task; write one JSON object on each line")
    return found


def folder_of(task: Task) -> Tree:
    """Returns the task's files in the agent program's folder: those of the field ``files``, and ``task.json``."""
    told = {key: value for key, value in task.data.items() if key not in ("files", "hidden")}
    return {**tree_of(task.data.get("files") or {}), TASK: File(json.dumps(told, ensure_ascii=False).encode())}


def hidden_of(task: Task) -> Tree:
    """Returns a task's hidden files, which are added to the agent program's folder before the score is computed."""
    return tree_of(task.data.get("hidden") or {})


def _check(files: Mapping[str, Any]) -> None:
    for path in files:
        parts = path.split("/")
        if not path or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"the path {path!r} must be relative, without empty parts, '.' or '..'")


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        return f"{'.'.join(map(str, problem['loc'])) or 'record'}: {problem['msg']}"
    return str(error)
