"""Checks a dialogue after each user turn, as BFCL's multi-turn check does.

The policy must have reached the state to which the calls of the ground truth lead, and must have seen every answer that
the calls of the ground truth get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turnwise.envs.dialogues.problem import DialogueProblem, World

EMPTY, STATE, ANSWERS, STOPPED = "no_call", "other_state", "answer_missing", "stopped"


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of running the calls of the ground truth: the state and the answers of each user turn."""

    start: World
    states: tuple[World, ...]
    answers: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, problem: DialogueProblem) -> Reference:
        start = problem.world()
        truth = start.fork()
        states, answers = [], []
        for turn in problem.turns:
            answers.append(tuple(truth.call(call) for call in turn.calls))
            states.append(truth.fork())
        return cls(start, tuple(states), tuple(answers))

    def fault(self, turn: int, world: World, seen: Sequence[str], called: bool) -> str:
        """Checks the end of a user turn. Returns the policy's fault (a constant of this module); empty for no fault.

        Args:
            turn: index of the user turn.
            world: the state at the end of the user turn.
            seen: all answers that the policy got so far, including those of earlier user turns.
            called: whether the policy made a call in this user turn.
        """
        if not self.answers[turn]:
            # This request cannot be fulfilled. If the policy has changed the state anyway, a later user turn's check
            # fails.
            return ""
        if not called:
            return EMPTY
        if not world.same_state(self.states[turn]):
            return STATE
        return "" if holds(seen, self.answers[turn]) else ANSWERS


def holds(seen: Iterable[str], wanted: Iterable[str]) -> bool:
    """Returns whether ``seen`` contains each text of ``wanted`` at least as often as ``wanted`` does, in any order."""
    return not Counter(wanted) - Counter(seen)
