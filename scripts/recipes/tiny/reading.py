"""Creates reading drills: one task, then list after list, and at each list the choice to take the object or to walk on.

In a demonstration only few tokens depend on whether the task's object is in the last list, but all tokens have weight.
In a drill every list requires this choice, and little else has weight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from scripts.recipes.tiny.corpus import Document, encode

from turnwise.types import Task
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.household.world import NOTHING, bits

_LISTS = 3, 8  # smallest and largest number of lists of a drill
_PRESENT = 0.5  # share of the lists that are drawn from those with the object
_NAME = 0.3  # loss weight of the object's name and number; the choice itself has weight 1


@dataclass(frozen=True, slots=True)
class Shown:
    """The list that the policy sees when it walks to a receptacle."""

    place: str
    text: str
    objects: tuple[str, ...]  # names with their numbers

    def find(self, kind: str) -> str | None:
        return next((name for name in self.objects if name.rsplit(" ", 1)[0] == kind), None)


def tour(env: HouseholdEnv, task: Task) -> Iterator[Shown]:
    """Yields the lists of all receptacles of a room that are open and not empty."""
    session = env.reset(task)
    world, state = session.world, session.state
    for r, place in enumerate(world.receptacles):
        if state.contents[r] and state.accessible(world, r):
            text = session.step(f"go to {place}").observation
            yield Shown(place, text, tuple(world.objects[i] for i in bits(state.contents[r])))


def drill_documents(env: HouseholdEnv, tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
    """Yields ``count`` drills, one for each of ``count`` new training tasks, over lists of rooms of the task's kind.

    ``weight`` is the loss weight of the first token of a choice, ``take`` or ``go``.
    """
    rng = Random(seed)
    env = HouseholdEnv(horizon=max(env.horizon, 100))  # a tour takes one turn for each receptacle
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
    """Returns one drill. ``task`` is the text of the first message, ``kind`` the kind of the requested object.

    The object is not really taken, so that the hands stay empty; the next walk is then not a choice.
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
    """Appends an assistant turn whose first tokens have these weights."""
    turn = encode([{"role": "assistant", "content": text}], tokenizer, 0.0)
    start = turn.weights.index(1.0)
    document.ids.extend(turn.ids)
    document.weights.extend([0.0] * start + weights + [0.0] * (len(turn.ids) - start - len(weights)))


def _hear(document: Document, text: str, tokenizer: Any) -> None:
    answer = encode([{"role": "user", "content": text}], tokenizer, 0.0)
    document.ids.extend(answer.ids)
    document.weights.extend(answer.weights)
