"""The two scripted experts of an environment, and the trajectories of experts.

The good expert always acts correctly. The clumsy expert makes mistakes with given probabilities and then recovers.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from turnwise.data.toolcalls import Format, write_calls
from turnwise.envs.environment import Quality, Session, tools_of
from turnwise.envs.tool_messages import said
from turnwise.types import Message, ToolCall, Trajectory

S = TypeVar("S", bound=Session)
MOST = 0.8  # maximum sum of the probabilities of mistakes; a larger sum would leave too few turns for correct actions


@dataclass(frozen=True, slots=True)
class Chances:
    """The probabilities of a clumsy expert's mistakes: a subclass has one field for each kind of mistake.

    Raises:
        ValueError: a probability lies outside [0, 1], or the probabilities sum to more than 0.8.
    """

    def __post_init__(self) -> None:
        key = type(self).__name__.lower()
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{key}.{name}: must be in [0, 1], got {value}")
        if sum(values.values()) > MOST:
            raise ValueError(
                f"{key}: the probabilities sum to {sum(values.values()):g}; lower the sum to at most {MOST}, so that "
                "enough turns are left to solve a task"
            )

    def drawn(self, draw: float) -> str | None:
        """Returns the mistake that ``draw``, a uniform random number in [0, 1), selects; None for no mistake."""
        for field in fields(self):
            draw -= getattr(self, field.name)
            if draw < 0:
                return field.name
        return None


class Expert(ABC, Generic[S]):
    """A scripted expert that knows the solution. One instance acts in one episode.

    Args:
        session: a fresh episode.
        seed: seed for choosing between equally good actions.
    """

    def __init__(self, session: S, seed: int | str) -> None:
        self.rng = random.Random(f"{session.task.env} expert {seed} {session.task.id}")

    @abstractmethod
    def best(self, session: S) -> str:
        """Returns the correct next action."""

    def act(self, session: S) -> str:
        """Returns the next action of this expert, which may be a mistake."""
        return self.best(session)


class Clumsy(Expert[S]):
    """An expert that sometimes makes a mistake.

    A subclass has two base classes: first ``Clumsy``, then the class of the good expert. For each field of ``chances``,
    such as ``stray``, the subclass has a method, such as ``_stray``. The method returns a mistake of this kind as an
    action, or None if the mistake is not possible now.
    """

    def __init__(self, session: S, seed: int | str, chances: Chances) -> None:
        super().__init__(session, seed)
        self.chances = chances

    def has_room(self, session: S) -> bool:
        """Returns whether enough turns are left to correct a mistake."""
        return True

    def mistake(self, session: S, *known: Any) -> str | None:
        """Draws whether the expert makes a mistake now. Returns the mistake as an action; None for no mistake.

        ``known`` holds further arguments for the method of the mistake.
        """
        draw = self.rng.random()
        name = self.chances.drawn(draw) if self.has_room(session) else None
        action: str | None = getattr(self, f"_{name}")(session, *known) if name else None
        return action

    def act(self, session: S) -> str:
        action = self.mistake(session)
        return self.best(session) if action is None else action


def check_quality(quality: Quality) -> Quality:
    """Checks and returns the quality of an expert.

    Raises:
        ValueError: ``quality`` is neither good nor clumsy.
    """
    if quality not in ("good", "clumsy"):
        raise ValueError(f"quality: must be good or clumsy, got {quality!r}")
    return quality


def demonstration(session: Session, act: Callable[[], str | None], quality: Quality, seed: int) -> Trajectory:
    """Runs an expert's episode and returns the trajectory, which ends with the last observation.

    Args:
        session: a fresh episode, which is run to its end.
        act: function that returns the expert's next action; None ends the episode early.
        quality: quality of the expert, which becomes part of the trajectory's id.
        seed: seed of the expert, which becomes part of the trajectory's id.

    Raises:
        EnvironmentFault: the environment failed.
    """
    messages: list[Message] = session.opening()
    while not session.done and (action := act()) is not None:
        messages.append({"role": "assistant", "content": action})
        messages += session.step(action).shown
    return _trajectory_of(session, messages, quality, seed)


def _trajectory_of(session: Any, messages: Sequence[Message], quality: Quality, seed: int) -> Trajectory:
    """Returns the trajectory of an episode that an expert has finished."""
    task = session.task
    return Trajectory(
        id=f"{task.id}/{quality}/{seed}",
        messages=tuple(messages),
        tools=tuple(tools_of(session)),
        task=task,
        success=session.won,
        source=f"{task.env}:{quality}",
    )


def played(
    session: Session, replies: Iterable[tuple[Sequence[ToolCall], str]], form: Format, quality: Quality, seed: int
) -> Trajectory:
    """Runs an expert's episode whose actions are tool calls, and returns the trajectory. See :func:`demonstration`.

    Each element of ``replies`` is a pair (tool calls, text). The text is the thought before the calls; in a reply
    without calls, the text is the whole reply.
    """
    messages = list(session.opening())
    for calls, text in replies:
        if session.done:
            break
        messages.append(said(calls, form, tools_of(session), text) if calls else {"role": "assistant", "content": text})
        step = session.step(text + write_calls(calls, form) if calls else text)
        if step.messages:
            messages += step.messages
        elif not step.done:
            messages.append({"role": "user", "content": step.observation})
    return _trajectory_of(session, messages, quality, seed)
