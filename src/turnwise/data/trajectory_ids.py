"""Represents a trajectory as ids, and chooses the turns before which the rendered history is compared with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EACH = 64  # number of turns at the start of a trajectory before each of which the history is compared


@dataclass(frozen=True, slots=True)
class Spine:
    """A whole trajectory as one list of ids, each token once.

    ``ids[:start]`` is the state before an assistant turn and ``ids[start:stop]`` its action with the end-of-turn token.
    """

    ids: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]  # (start, stop) of every assistant turn


def compared(count: int) -> set[int]:
    """Returns which of ``count`` turns to compare: the first ``EACH``, then turns at distances that grow by half, and
    the last one.

    The total length of the compared histories therefore stays small. A template that rewrites an old turn also does so
    in all later histories, so that the next comparison finds it.
    """
    found, turn = set(range(min(count, EACH))), float(EACH)
    while turn < count:
        found.add(int(turn))
        turn *= 1.5
    return found | {count - 1}


def rewritten(name: str, spines: Sequence[Spine]) -> str:
    """Returns the warning for a chat template that needs several spines for one trajectory; ``name`` is the model's."""
    return (
        f"{name}: the chat template rewrites earlier turns, first seen before assistant turn "
        f"{len(spines[0].turns)} of a trajectory (it drops past reasoning or moves text); use a template that "
        "keeps history as it was written, set data.thinking, or remove the reasoning from the demonstrations"
    )
