"""Compares a policy's reply with the demonstrated reply by the rule with which NeMo Gym verifies pivot rows.

The rule is that of the server ``resources_servers/single_step_tool_use_with_argument_comparison`` of NVIDIA-NeMo/Gym
with the server's default settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from turnwise.data.toolcalls.parsing import Reply
from turnwise.types import ToolCall

MOST = 0.5  # largest possible word overlap of two texts; it is reached if both have the same words
_NEAR = 1e-6  # floats that differ by less than this are equal


def accepts(made: Reply, expected: Reply, least: float) -> bool:
    """Returns whether the policy's reply ``made`` is equivalent to the demonstrated reply ``expected``.

    If the demonstrated reply calls tools, each of its calls must match a different call of the policy's reply
    (:func:`same_call`). The policy may make additional calls. If the demonstrated reply is text, any text without a
    call is accepted. ``least`` is the smallest word overlap (:func:`overlap`) at which two text arguments count as
    equal, in [0, ``MOST``].
    """
    if not expected.calls:
        return bool(made.content) and not made.calls
    import numpy as np  # imported here, like scipy, because both are slow to import
    from scipy.optimize import linear_sum_assignment

    fits = np.array([[same_call(call, true, least) for call in made.calls] for true in expected.calls], float)
    return bool(fits[linear_sum_assignment(fits, maximize=True)].sum() == len(expected.calls))


def same_call(made: ToolCall, expected: ToolCall, least: float) -> bool:
    """Returns whether two tool calls name the same tool and have equal arguments.

    Two objects must have the same keys, and two lists must have the same length. Two values must have the same type, so
    1 does not equal 1.0. As an exception, True and False in ``made`` equal 1 and 0 in ``expected``. Two floats are
    equal if they differ by less than 1e-6. Two texts are compared exactly if one of them has fewer than two words;
    otherwise they are equal if their word overlap (:func:`overlap`) is at least ``least``.
    """
    return made.name == expected.name and _same(dict(made.arguments), dict(expected.arguments), least)


def overlap(made: str, expected: str) -> float:
    """Returns the word overlap of two texts: the number of words in both, divided by the sum of their word counts.

    The overlap is in [0, 0.5]. Letter case and word order are ignored. A word counts as often as it occurs in both
    texts. The overlap of two empty texts is 0.
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
