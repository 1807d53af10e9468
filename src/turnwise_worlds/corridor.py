"""``env=corridor``: a walk whose values are known exactly. The share of turns at which the action matters, the number of
turns and the noise are settings, and :func:`value` computes V and Q under any policy that acts on the text it is shown.

A corridor has rooms, one for each turn. In some rooms there is a fork with a sign, and the way matters; in the others
every way leads on. In the last room there are ten doors, some of them locked. The episode is won if at most ``slips``
forks were taken against the sign, and the chosen door is open. Nothing tells which doors are open, so for a policy that
has not seen the task they are noise: they lower the values of all earlier turns by one factor.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval
from pydantic import NonNegativeInt, PositiveInt

from turnwise.env import CountedSession, Step
from turnwise.types import Message, Task
from turnwise_worlds.scripted_experts import Chances, Expert, ScriptedEnv

WAYS = ("left", "right", "on")
DOORS = tuple(map(str, range(10)))


class CorridorSession(CountedSession):
    def __init__(self, task: Task) -> None:
        self.task, self.slips = task, task.data["slips"]
        self.signs, self.unlocked = tuple(task.data["signs"]), tuple(task.data["unlocked"])
        self.horizon = len(self.signs) + 1
        self.room = self.wrong = 0

    @property
    def at_doors(self) -> bool:
        return self.room == len(self.signs)

    @property
    def sign(self) -> str:
        """The way at the fork of this room; empty without a fork."""
        return "" if self.at_doors else self.signs[self.room]

    def view(self) -> str:
        """The whole state, if every reply could be read."""
        seen = f"the sign says {self.sign}" if self.sign else "the corridor goes on"
        wrong = f"{self.wrong} wrong turn{'s' * (self.wrong != 1)}"
        return f"Room {self.room + 1} of {self.horizon}, {wrong}: {'ten doors, 0 to 9' if self.at_doors else seen}."

    def opening(self) -> list[Message]:
        rules = (
            f"Corridor {self.task.data['name']}. In each room write left, right or on. Follow the signs: "
            f"{self.slips} wrong turns are forgiven. In the last room, write the number of a door."
        )
        return [{"role": "user", "content": f"{rules}\n{self.view()}"}]

    def read(self, action: str) -> str | None:
        word = action.strip().casefold()
        return word if word in (DOORS if self.at_doors else WAYS) else None

    def answer(self, action: str) -> Step:
        word = self.read(action)
        info = {"admissible": word is not None}
        if word is None:
            return Step(f"Nothing happens. {self.view()}", info=info)
        if self.at_doors:
            won = word in self.unlocked and self.wrong <= self.slips
            return Step("The way out." if won else "No way out.", float(won), True, won, info)
        self.wrong += bool(self.sign) and word != self.sign
        self.room += 1
        return Step(self.view(), info=info)

    def right(self) -> tuple[str, ...]:
        """The actions after which the episode can still be won as well as before."""
        if self.at_doors:
            return self.unlocked
        return (self.sign,) if self.sign else WAYS


Policy = Callable[[str], Mapping[str, float]]
"""Returns the probability of each action of a turn, given the text that the environment has last shown."""


def value(session: CorridorSession, policy: Policy, known: dict[Any, float]) -> float:
    """Returns V of the session's state, the probability of winning, by dynamic programming over the states after it.
    Q(s, a) is the V of the state after a, because a step has one result (:func:`after`).

    Args:
        known: values of states that earlier calls for the same task and policy have computed; new ones are added.
    """
    if session.done:
        return float(session.won)
    state = session.turns, session.room, session.wrong
    if state not in known:
        known[state] = sum(
            chance * value(after(session, action), policy, known) for action, chance in policy(session.view()).items()
        )
    return known[state]


def after(session: CorridorSession, *actions: str) -> CorridorSession:
    following = session.fork()
    for action in actions:
        following.step(action)
    return following


def skilled(skill: float) -> Policy:
    """Returns a policy that follows a sign with probability ``skill``, and chooses uniformly where no sign is."""

    def policy(text: str) -> Mapping[str, float]:
        view = text.rstrip(".")
        if view.endswith(("left", "right")):
            sign = view.rpartition(" ")[2]
            return {sign: skill, "right" if sign == "left" else "left": 1 - skill}
        choices = DOORS if view.endswith("0 to 9") else WAYS
        return dict.fromkeys(choices, 1 / len(choices))

    return policy


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    astray: float = 0.3  # goes against the sign of a fork, as long as a wrong turn is forgiven


class CorridorExpert(Expert[CorridorSession]):
    def best(self, session: CorridorSession) -> str:
        return "on" if not session.sign and not session.at_doors else self.rng.choice(session.right())

    def has_room(self, session: CorridorSession) -> bool:
        return bool(session.sign) and session.wrong < session.slips

    def _astray(self, session: CorridorSession) -> str | None:
        return "left" if session.sign == "right" else "right"


@dataclass(eq=False)
class CorridorEnv(ScriptedEnv[CorridorSession]):
    """Corridors (conf/env/corridor.yaml explains the arguments)."""

    name = "corridor"
    expert = CorridorExpert

    horizon: PositiveInt = 16
    density: Annotated[float, Interval(ge=0, le=1)] = 0.25
    noise: Annotated[float, Interval(ge=0, le=0.9)] = 0.1
    slips: NonNegativeInt = 1
    mistakes: Mistakes = Mistakes()

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [self._task(split, f"{split}/{seed}/{index:06d}") for index in range(count)]

    def _task(self, split: str, name: str) -> Task:
        rng, rooms = random.Random(f"corridor {name}"), self.horizon - 1
        forks = rng.sample(range(rooms), round(self.density * rooms))
        signs = [rng.choice(WAYS[:2]) if room in forks else "" for room in range(rooms)]
        unlocked = sorted(rng.sample(DOORS, len(DOORS) - round(self.noise * len(DOORS))))
        data = {"name": name, "signs": signs, "unlocked": unlocked, "slips": self.slips}
        return Task(self.name, name, split, data)

    def begin(self, task: Task) -> CorridorSession:
        return CorridorSession(task)

    def accepts(self, session: CorridorSession, action: str, expert: str) -> bool:
        return not session.done and session.read(action) in session.right()
