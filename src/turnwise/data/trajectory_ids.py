"""Represents a trajectory as one list of token ids, and chooses the turns at which this list is compared with the
history that the chat template renders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EACH = 64  # number of first turns of a trajectory; the history before each of them is compared


@dataclass(frozen=True, slots=True)
class Spine:
    """A trajectory, or a part of it, as one list of token ids. Later turns continue the list, so no history is stored
    twice.

    For each assistant turn (start, stop), ``ids[:start]`` is the state before the turn, and ``ids[start:stop]`` is the
    turn's action with the end-of-turn token.
    """

    ids: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]  # (start, stop) of every assistant turn


def compared(count: int) -> set[int]:
    """Returns the indices of those turns before which the rendered history is compared with the token ids.

    A trajectory of ``count`` turns is compared before the first ``EACH`` turns, then before turns whose index grows by
    a factor of 1.5, and before the last turn. So the total length of the compared histories stays small. If a template
    rewrites a turn, the turn is also rewritten in all later histories, so the next comparison finds the change.
    """
    found, turn = set(range(min(count, EACH))), float(EACH)
    while turn < count:
        found.add(int(turn))
        turn *= 1.5
    return found | {count - 1}


def rewritten(name: str, spines: Sequence[Spine]) -> str:
    """Returns the warning that the chat template of the model ``name`` rewrites earlier turns. Because of this, one
    trajectory needs the several token lists ``spines``.
    """
    return (
        f"{name}: the chat template rewrites earlier turns: it drops their reasoning or moves text. This was first "
        f"seen before assistant turn {len(spines[0].turns)} of a trajectory. Use a template that keeps the history as "
        "it was written, set data.thinking=keep or data.thinking=drop, or remove the reasoning from the demonstrations"
    )
