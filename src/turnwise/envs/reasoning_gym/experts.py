"""Scripted experts of ``env=reasoning_gym``: they give the answer that the package reasoning-gym provides."""

from __future__ import annotations

import string
from dataclasses import dataclass

from turnwise.envs.reasoning_gym.session import ReasoningSession
from turnwise.envs.scripted import Chances, Clumsy, Expert


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """For each kind of mistake, the probability that the clumsy scripted expert makes it in a turn.

    The expert makes no mistake in the last turn, and so none at all if the horizon is one turn.
    """

    slip: float = 0.25  # gives the answer with one letter or digit changed
    empty: float = 0.05  # gives a reply without an answer


class GoodExpert(Expert[ReasoningSession]):
    """An expert that gives the answer that the package reasoning-gym provides."""

    def best(self, session: ReasoningSession) -> str:
        return session.write(str(session.item.answer))


class ClumsyExpert(Clumsy[ReasoningSession], GoodExpert):
    """An expert like :class:`GoodExpert` that sometimes makes a mistake (:class:`Mistakes`) and recovers from it."""

    def has_room(self, session: ReasoningSession) -> bool:
        return session.horizon - session.turns > 1

    def _slip(self, session: ReasoningSession) -> str | None:
        answer = str(session.item.answer)
        places = [i for i, c in enumerate(answer) if c in string.digits or c in string.ascii_letters]
        if not places:
            return None
        at = self.rng.choice(places)
        kind = string.digits if answer[at] in string.digits else string.ascii_lowercase
        other = self.rng.choice([c for c in kind if c != answer[at]])
        return session.write(answer[:at] + other + answer[at + 1 :])

    def _empty(self, session: ReasoningSession) -> str | None:
        return session.write("?")
