"""What experts' episodes have in common: the expert by its quality, its actions played, a Trajectory made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from turnwise.envs.environment import Quality, Session
from turnwise.types import Message, Trajectory

T = TypeVar("T")


def check_quality(quality: Quality) -> Quality:
    """``quality`` back.

    Raises:
        ValueError: it is neither good nor clumsy.
    """
    if quality not in ("good", "clumsy"):
        raise ValueError(f"quality: experts are good or clumsy, got {quality!r}")
    return quality


def by_quality(quality: Quality, good: Callable[[], T], clumsy: Callable[[], T]) -> T:
    """The expert of that quality; the other one is not made.

    Raises:
        ValueError: the quality is neither good nor clumsy.
    """
    return good() if check_quality(quality) == "good" else clumsy()


def demonstration(session: Session, act: Callable[[], str | None], quality: Quality, seed: int) -> Trajectory:
    """An expert's episode: opening, then action and observation in turn, the last observation included.

    Args:
        session: a fresh episode, which is played to its end.
        act: the expert's next action, asked after each step; None: it has no more, and the episode stays unfinished.
        quality, seed: name the trajectory.

    Raises:
        EnvironmentFault: the world failed.
    """
    messages: list[Message] = session.opening()
    while not session.done and (action := act()) is not None:
        messages.append({"role": "assistant", "content": action})
        messages += session.step(action).shown
    return Trajectory(
        id=f"{session.task.id}/{quality}/{seed}",
        messages=tuple(messages),
        task=session.task,
        success=session.won,
        source=f"{session.task.env}:{quality}",
    )
