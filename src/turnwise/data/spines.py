"""A trajectory as ids, and before which of its turns the rendered history is compared with them."""

from __future__ import annotations

from dataclasses import dataclass

EACH = 64  # turns of a trajectory before each of which it is compared


@dataclass(frozen=True, slots=True)
class Spine:
    """A whole trajectory as one list of ids, each token once.

    ``ids[:start]`` is the state before an assistant turn and ``ids[start:stop]`` its action with the end-of-turn token.
    """

    ids: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]  # (start, stop) of every assistant turn


def compared(count: int) -> set[int]:
    """Of ``count`` turns the first ones, then one in so many, and the last: all together are as much text as a few histories.

    A template that rewrites what was said long ago goes on to do so, and is seen at the next of them.
    """
    found, turn = set(range(min(count, EACH))), float(EACH)
    while turn < count:
        found.add(int(turn))
        turn *= 1.5
    return found | {count - 1}
