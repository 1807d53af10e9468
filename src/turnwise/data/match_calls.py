"""Compares a policy's tool calls with demonstrated ones: by a functional rule, exactly, and by NeMo Gym's rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.tool_schema import function_of, misfits
from turnwise.data.toolcalls import Reply
from turnwise.types import ToolCall


def match_calls(
    made: Sequence[ToolCall], expected: Sequence[ToolCall], tools: Sequence[Mapping[str, Any]] = ()
) -> bool:
    """Returns whether the calls ``made`` are equivalent to the calls ``expected`` by the functional rule (ours,
    for the functional equivalence of PivotRL, arXiv:2603.21383, section 3.1).

    The calls of one turn run in parallel, so their order does not matter. Each expected call must match one made call
    of the same tool with equal arguments, and no call may be left over. Numbers are compared as numbers, and whitespace
    at both ends of a text is ignored. With ``tools``, each made call must also fit the schema of its tool, and an
    optional argument that is left out has its default value.
    """
    if len(made) != len(expected) or (tools and any(misfits(call, tools) for call in made)):
        return False
    return not unmatched_calls(expected, made, tools)


def unmatched_calls(
    expected: Sequence[ToolCall], made: Sequence[ToolCall], tools: Sequence[Mapping[str, Any]] = ()
) -> list[ToolCall]:
    """The calls ``expected`` that are left if each call in ``made`` takes away one that it matches."""
    defaults = {str(function_of(tool).get("name")): _default_arguments(tool) for tool in tools}
    rest = list(expected)
    for call in made:  # matching is an equivalence relation, so any matching call may be chosen
        place = next((i for i, true in enumerate(rest) if _fits(call, true, defaults.get(true.name, {}))), None)
        if place is not None:
            del rest[place]
    return rest


def match_exactly(made: Sequence[ToolCall], expected: Sequence[ToolCall]) -> bool:
    """Returns whether the calls ``made`` are the calls ``expected``, in the same order with exactly equal arguments."""
    return len(made) == len(expected) and all(
        call.name == true.name and same_value(dict(call.arguments), dict(true.arguments))
        for call, true in zip(made, expected, strict=True)
    )


def same_value(a: Any, b: Any) -> bool:
    """Returns whether two JSON values are equal. 1 equals 1.0, but unlike in Python, True does not equal 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same_value, a, b))
    return bool(a == b)


def _default_arguments(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = function_of(tool).get("parameters") or {}
    required = schema.get("required") or ()
    properties = schema.get("properties") or {}
    return {
        name: about["default"]
        for name, about in properties.items()
        if name not in required and isinstance(about, Mapping) and "default" in about
    }


def _fits(call: ToolCall, true: ToolCall, defaults: Mapping[str, Any]) -> bool:
    return call.name == true.name and same_value(
        _form({**defaults, **call.arguments}), _form({**defaults, **true.arguments})
    )


def _form(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, Mapping):
        return {key: _form(item) for key, item in value.items()}
    return [_form(item) for item in value] if isinstance(value, list | tuple) else value


MOST = 0.5  # largest possible word overlap of two texts; it is reached if both have the same words
_NEAR = 1e-6  # floats that differ by less than this are equal


def match_by_nemo_gym(made: Reply, expected: Reply, least: float) -> bool:
    """Returns whether the policy's reply ``made`` is equivalent to the demonstrated reply ``expected`` by NeMo Gym's rule.

    If the demonstrated reply calls tools, each of its calls must match a different call of the policy's reply
    (:func:`same_call`). The policy may make additional calls. If the demonstrated reply is text, any text without a
    call is accepted.
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
    otherwise they are equal if their word overlap is at least ``least``, in [0, ``MOST``].
    """
    return made.name == expected.name and _match(dict(made.arguments), dict(expected.arguments), least)


def overlap(made: str, expected: str) -> float:
    """Returns the number of words that occur in both texts, as often as they do, divided by the sum of their word counts:
    a number in [0, 0.5]. Letter case and word order are ignored.
    """
    ours, theirs = Counter(made.lower().split()), Counter(expected.lower().split())
    both = ours.total() + theirs.total()
    return (ours & theirs).total() / both if both else 0.0


def _match(made: Any, expected: Any, least: float) -> bool:
    if not isinstance(made, type(expected)):
        return False
    if isinstance(expected, Mapping):
        return made.keys() == expected.keys() and all(_match(made[key], expected[key], least) for key in expected)
    if isinstance(expected, list):
        return len(made) == len(expected) and all(_match(*pair, least) for pair in zip(made, expected, strict=True))
    if isinstance(expected, float):
        return abs(made - expected) < _NEAR
    if isinstance(expected, str) and min(len(made.split()), len(expected.split())) > 1:
        return overlap(made, expected) >= least
    return bool(made == expected)
