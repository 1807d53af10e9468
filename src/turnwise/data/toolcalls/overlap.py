"""Compares a reply with a demonstrated one by the rule with which NeMo Gym verifies pivot rows.

The rule is that of ``resources_servers/single_step_tool_use_with_argument_comparison`` of NVIDIA-NeMo/Gym, with its
defaults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.toolcalls.reply import Reply
from turnwise.types import ToolCall

MOST = 0.5  # largest possible overlap, which two texts with the same words have
_NEAR = 1e-6  # floats that differ by less than this are equal


def accepts(made: Reply, expected: Reply, least: float) -> bool:
    """Returns whether a reply is equivalent to the demonstrated reply.

    If the demonstrated reply calls tools, each of its calls must be matched to a different made call
    (:func:`same_call`); additional calls are allowed. If the demonstrated reply is text, any text without a call is
    accepted.

    Args:
        least: smallest word overlap (:func:`overlap`) at which two text arguments count as equal, in [0, ``MOST``].
    """
    if not expected.calls:
        return bool(made.content) and not made.calls
    fits = [[at for at, call in enumerate(made.calls) if same_call(call, true, least)] for true in expected.calls]
    return _all_matched(fits)


def same_call(made: ToolCall, expected: ToolCall, least: float) -> bool:
    """Returns whether two calls name the same tool and have equal arguments.

    Objects need the same keys, lists the same length, and values the same type: 1 does not equal 1.0. Floats are equal
    if they differ by less than 1e-6. Two texts must be identical if one of them has fewer than two words; otherwise
    their word overlap must be at least ``least``.
    """
    return made.name == expected.name and _same(dict(made.arguments), dict(expected.arguments), least)


def overlap(made: str, expected: str) -> float:
    """Returns the word overlap of two texts in [0, 0.5]: the number of words that they share, divided by the sum of
    their numbers of words.

    Letter case and order are ignored, and a word counts as often as it occurs. Two empty texts have no overlap.
    """
    ours, theirs = Counter(made.lower().split()), Counter(expected.lower().split())
    both = ours.total() + theirs.total()
    return (ours & theirs).total() / both if both else 0.0


def _same(made: Any, expected: Any, least: float) -> bool:
    if not isinstance(made, type(expected)):
        return False
    if isinstance(expected, Mapping):
        return made.keys() == expected.keys() and all(_same(made[key], expected[key], least) for key in expected)
    if isinstance(expected, list):
        return len(made) == len(expected) and all(_same(*pair, least) for pair in zip(made, expected, strict=True))
    if isinstance(expected, float):
        return abs(made - expected) < _NEAR
    if isinstance(expected, str) and min(len(made.split()), len(expected.split())) > 1:
        return overlap(made, expected) >= least
    return bool(made == expected)


def _all_matched(fits: Sequence[Sequence[int]]) -> bool:
    """Returns whether each expected call can be matched to a different made call (bipartite matching by augmenting
    paths).

    ``fits`` lists, for each expected call, the indices of the made calls that it accepts.
    """
    taken: dict[int, int] = {}

    def place(number: int, tried: set[int]) -> bool:
        for at in fits[number]:
            if at not in tried:
                tried.add(at)
                if at not in taken or place(taken[at], tried):
                    taken[at] = number
                    return True
        return False

    return all(place(number, set()) for number in range(len(fits)))
