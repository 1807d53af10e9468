"""Represents a trajectory as token ids, and chooses the turns at which these ids are compared with the rendered
history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EACH = 64  # number of turns at the start of a trajectory before each of which the history is compared


@dataclass(frozen=True, slots=True)
class Spine:
    """A trajectory (or a part of it) as one list of token ids, in which each token occurs once.

    For each assistant turn (start, stop), ``ids[:start]`` is the state before it, and ``ids[start:stop]`` is its action
    with the end-of-turn token.
    """

    ids: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]  # (start, stop) of every assistant turn


def compared(count: int) -> set[int]:
    """Returns the turns, out of ``count``, before which the rendered history is compared with the token ids.

    These are the first ``EACH`` turns, then turns whose index grows by a factor of 1.5, and the last turn. So the total
    length of the compared histories stays small. A template that rewrites an old turn also does so in all later
    histories, so that the next comparison finds it.
    """
    found, turn = set(range(min(count, EACH))), float(EACH)
    while turn < count:
        found.add(int(turn))
        turn *= 1.5
    return found | {count - 1}


def rewritten(name: str, spines: Sequence[Spine]) -> str:
    """Returns the warning for a chat template that rewrites history, so that one trajectory needs several token lists
    (spines). ``name`` is the name of the model.
    """
    return (
        f"{name}: the chat template rewrites earlier turns, first seen before assistant turn "
        f"{len(spines[0].turns)} of a trajectory (it drops past reasoning or moves text); use a template that "
        "keeps history as it was written, set data.thinking, or remove the reasoning from the demonstrations"
    )
