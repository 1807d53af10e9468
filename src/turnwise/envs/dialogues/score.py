"""BFCL's multi-turn check: after each user turn the state must be the ground truth's, and its answers must have been seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turnwise.envs.dialogues.problem import DialogueProblem, World
from turnwise.types import ToolCall

EMPTY, STATE, ANSWERS, STOPPED = "no_call", "other_state", "answer_missing", "stopped"


@dataclass(frozen=True, slots=True)
class Reference:
    """The ground truth, run once: the state after each user turn and the answers of that turn. It is never changed."""

    start: World
    states: tuple[World, ...]
    answers: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, problem: DialogueProblem) -> Reference:
        """Play ``problem``'s ground truth."""
        start = problem.world()
        truth = start.fork()
        states, answers = [], []
        for turn in problem.turns:
            answers.append(tuple(truth.call(call) for call in turn.calls))
            states.append(truth.fork())
        return cls(start, tuple(states), tuple(answers))

    def fault(self, turn: int, world: World, seen: Sequence[str], called: bool) -> str:
        """Returns what is wrong at the end of a user turn; empty where nothing is.

        Args:
            turn: which one.
            world: the state that the policy left.
            seen: all answers that it got so far, of earlier turns too.
            called: whether it made a call in this turn.
        """
        if not self.answers[turn]:
            return (
                ""  # the user asks for what cannot be done: the next turn shows whether something was done all the same
            )
        if not called:
            return EMPTY
        if not world.same_state(self.states[turn]):
            return STATE
        return "" if holds(seen, self.answers[turn]) else ANSWERS


def holds(seen: Iterable[str], wanted: Iterable[str]) -> bool:
    """Whether all that is wanted was seen, as often as it is wanted, in any order."""
    return not Counter(wanted) - Counter(seen)


def check(reference: Reference, turns: Sequence[Sequence[Sequence[ToolCall]]]) -> str:
    """Returns what is wrong with whole user turns of steps of calls; empty where the task is solved.

    Fewer turns than the task has means that the policy was stopped. The name of the fault is one of ``EMPTY``, ``STATE``,
    ``ANSWERS`` and ``STOPPED``.
    """
    if len(turns) != len(reference.states):
        return STOPPED
    world = reference.start.fork()
    seen: list[str] = []
    for at, steps in enumerate(turns):
        made = [call for step in steps for call in step]
        seen += [world.call(call) for call in made]
        if fault := reference.fault(at, world, seen, bool(made)):
            return fault
    return ""
