"""Draws, for an evaluation, tasks of an environment and items (questions) of a toy skill. The tasks and items drawn at
a seed other than 0 are not among those of seed 0.

The user chooses settings while looking at results on the tasks of seed 0, so a final evaluation needs other tasks.
Another seed alone does not give other tasks if an environment has few of them: with ``env=search``, four in ten
questions of one seed are also questions of another seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from turnwise.errors import InputError
from turnwise.evaluation.skills import Item, items
from turnwise.types import Task

T = TypeVar("T")


def fresh_tasks(environment: Any, split: str, count: int, seed: int) -> Sequence[Task]:
    """Returns ``count`` tasks of a split, drawn at a seed. At a seed other than 0, none of them is among the ``count``
    tasks of seed 0.

    Two tasks are the same if they have the same data, even if their ids differ.

    Raises:
        InputError: fewer than ``count`` of the tasks drawn at ``seed`` differ from the tasks of seed 0.
    """
    return _fresh(lambda most, at: environment.tasks(split, most, at), _content, count, seed, f"{split} tasks")


def fresh_items(skill: str, count: int, seed: int) -> list[Item]:
    """Returns ``count`` test items of a toy skill, drawn at a seed. At a seed other than 0, none of them is among the
    ``count`` items of seed 0.

    Raises:
        InputError: fewer than ``count`` of the items drawn at ``seed`` differ from the items of seed 0.
    """
    return _fresh(
        lambda most, at: items(skill, "test", most, at), lambda item: item.prompt, count, seed, f"{skill} items"
    )


def _content(task: Task) -> str:
    return json.dumps([task.env, task.data], sort_keys=True, default=str)


def _fresh(
    draw: Callable[[int, int], Sequence[T]], key: Callable[[T], Hashable], count: int, seed: int, what: str
) -> list[T]:
    seen = list(draw(count, 0))
    if seed == 0:
        return seen
    known = {key(one) for one in seen}
    try:
        # twice as many are drawn, because all tasks of seed 0 may be drawn again
        found = [one for one in draw(2 * count, seed) if key(one) not in known]
    except ValueError as error:
        raise _too_few(what, count, seed, str(error)) from error
    if len(found) < count:
        raise _too_few(what, count, seed, f"{len(found)} are left")
    return found[:count]


def _too_few(what: str, count: int, seed: int, why: str) -> InputError:
    return InputError(
        f"eval.seed={seed}: too few {what} differ from those of eval.seed=0: {count} are needed ({why}); lower "
        "eval.tasks or eval.items, or leave eval.seed at 0"
    )
