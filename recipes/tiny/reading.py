"""Reading drills: one task, then list after list, and at each the choice to take what is asked for or to walk on.

In a whole demonstration few tokens hang on whether the task's object is in the list just shown, and all have a weight; in a drill
every list asks for that choice, and little else has a weight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from recipes.tiny.corpus import Document, encode

from turnwise.envs.household import HouseholdEnv
from turnwise.envs.household.world import NOTHING, bits
from turnwise.types import Task

_LISTS = 3, 8  # of a drill
_PRESENT = 0.5  # of the lists are drawn among those that hold the object
_NAME = 0.3  # weight of the object's name and number, beside 1 for the choice itself


@dataclass(frozen=True, slots=True)
class Shown:
    """What a walk to a receptacle shows."""

    place: str
    text: str
    objects: tuple[str, ...]  # names with their numbers

    def find(self, kind: str) -> str | None:
        """The first object of a kind, if there is one."""
        return next((name for name in self.objects if name.rsplit(" ", 1)[0] == kind), None)


def tour(env: HouseholdEnv, task: Task) -> Iterator[Shown]:
    """The lists of a room: all of its receptacles that stand open and hold something."""
    session = env.reset(task)
    world, state = session.world, session.state
    for r, place in enumerate(world.receptacles):
        if state.contents[r] and state.accessible(world, r):
            text = session.step(f"go to {place}").observation
            yield Shown(place, text, tuple(world.objects[i] for i in bits(state.contents[r])))


def drill_documents(env: HouseholdEnv, tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
    """``count`` drills over the lists of as many fresh training tasks, each over rooms of its task's kind.

    Args:
        weight: of the choice's first token, ``take`` or ``go``.
    """
    rng = Random(seed)
    env = HouseholdEnv(horizon=max(env.horizon, 100))  # a tour takes a turn for each receptacle
    tasks = list(env.tasks("train", count, seed))
    lists: dict[str, list[Shown]] = defaultdict(list)
    for task in tasks:
        lists[task.data["kind"]] += tour(env, task)
    opened = {task.id: env.reset(task).opening()[0]["content"] for task in tasks}
    for task in tasks:
        kind, near = task.data["goal"]["object"], lists[task.data["kind"]]
        holding = [shown for shown in near if shown.find(kind)]
        chosen = [
            rng.choice(holding if holding and rng.random() < _PRESENT else near) for _ in range(rng.randint(*_LISTS))
        ]
        text = opened[task.id]
        yield drill(rng.choice((text, text.split("\n\n")[-1])), kind, chosen, tokenizer, weight)


def drill(task: str, kind: str, lists: list[Shown], tokenizer: Any, weight: float) -> Document:
    """One drill. Taking answers nothing here, so that the hands stay empty; the next walk is then no choice.

    Args:
        task: the text of the first message.
        kind: of the object that is asked for.
    """
    document = encode([{"role": "user", "content": task}], tokenizer, 0.0)
    due = 0.0
    for shown in lists:
        _say(document, f"go to {shown.place}", [due], tokenizer)
        _hear(document, shown.text, tokenizer)
        found, due = shown.find(kind), weight
        if found:
            _say(document, f"take {found} from {shown.place}", [weight, weight * _NAME, weight * _NAME], tokenizer)
            _hear(document, NOTHING, tokenizer)
            due = 0.0
    return document


def _say(document: Document, text: str, weights: list[float], tokenizer: Any) -> None:
    """Append an assistant turn whose first tokens have these weights."""
    turn = encode([{"role": "assistant", "content": text}], tokenizer, 0.0)
    start = turn.weights.index(1.0)
    document.ids.extend(turn.ids)
    document.weights.extend([0.0] * start + weights + [0.0] * (len(turn.ids) - start - len(weights)))


def _hear(document: Document, text: str, tokenizer: Any) -> None:
    answer = encode([{"role": "user", "content": text}], tokenizer, 0.0)
    document.ids.extend(answer.ids)
    document.weights.extend(answer.weights)
