"""Compares a reply with a demonstrated one by the argument comparison of NeMo Gym, the rule under which pivot rows are verified.

The rule is that of ``resources_servers/single_step_tool_use_with_argument_comparison`` of NVIDIA-NeMo/Gym, with its defaults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.toolcalls.reply import Reply
from turnwise.types import ToolCall

MOST = 0.5  # overlap of two texts with the same words
_NEAR = 1e-6  # floats that differ by less are equal


def accepts(made: Reply, expected: Reply, least: float) -> bool:
    """Returns whether a reply does what the demonstrated one does.

    If the demonstrated reply calls tools, each of its calls must be matched to a made call of its own (:func:`same_call`), and
    further calls cost nothing. If it is text, any text without a call is accepted.

    Args:
        least: overlap of words (:func:`overlap`) from which on two texts of arguments are equal, in [0, ``MOST``].
    """
    if not expected.calls:
        return bool(made.content) and not made.calls
    fits = [[at for at, call in enumerate(made.calls) if same_call(call, true, least)] for true in expected.calls]
    return _all_matched(fits)


def same_call(made: ToolCall, expected: ToolCall, least: float) -> bool:
    """Returns whether two calls name the same tool and have equal arguments.

    Objects need the same keys, lists the same length, and values the same type: 1 is no 1.0. Floats are equal if they differ by
    less than 1e-6. Texts of which one has fewer than two words must be the same, other texts overlap by ``least``.
    """
    return made.name == expected.name and _same(dict(made.arguments), dict(expected.arguments), least)


def overlap(made: str, expected: str) -> float:
    """Returns the number of words that two texts share over the number of words of both, in [0, 0.5]. Letter case and order are
    ignored, and a word counts as often as it occurs. Two empty texts have no overlap."""
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
    """Returns whether each expected call can have a made call of its own; ``fits`` are the made calls that it accepts.

    A call that is taken may be left to another expected call if the one that has it finds a further one (an augmenting path).
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
