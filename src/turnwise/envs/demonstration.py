"""Makes trajectories of scripted experts: chooses the expert, runs its episode and builds the trajectory record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from turnwise.envs.environment import Quality, Session, tools_of
from turnwise.types import Message, Trajectory

T = TypeVar("T")


def check_quality(quality: Quality) -> Quality:
    """Checks the quality of an expert and returns it unchanged.

    Raises:
        ValueError: ``quality`` is neither good nor clumsy.
    """
    if quality not in ("good", "clumsy"):
        raise ValueError(f"quality: must be good or clumsy, got {quality!r}")
    return quality


def by_quality(quality: Quality, good: Callable[[], T], clumsy: Callable[[], T]) -> T:
    """Builds the expert of the given quality and returns it.

    The function ``good`` builds the good expert, and ``clumsy`` builds the clumsy expert. Only one of them is called.

    Raises:
        ValueError: the quality is neither good nor clumsy.
    """
    return good() if check_quality(quality) == "good" else clumsy()


def demonstration(session: Session, act: Callable[[], str | None], quality: Quality, seed: int) -> Trajectory:
    """Runs an expert's episode and returns it as a trajectory, which ends with the last observation.

    Args:
        session: a fresh episode, which is run to its end.
        act: function that returns the expert's next action. It is called before each step. If it returns None, the
            episode ends early.
        quality: quality of the expert, which becomes part of the trajectory's id.
        seed: seed of the expert, which becomes part of the trajectory's id.

    Raises:
        EnvironmentFault: the environment failed.
    """
    messages: list[Message] = session.opening()
    while not session.done and (action := act()) is not None:
        messages.append({"role": "assistant", "content": action})
        messages += session.step(action).shown
    return trajectory_of(session, messages, quality, seed)


def trajectory_of(session: Any, messages: Sequence[Message], quality: Quality, seed: int) -> Trajectory:
    """Returns the trajectory record of an episode that an expert has finished."""
    task = session.task
    return Trajectory(
        id=f"{task.id}/{quality}/{seed}",
        messages=tuple(messages),
        tools=tuple(tools_of(session)),
        task=task,
        success=session.won,
        source=f"{task.env}:{quality}",
    )
