"""Compares tool calls with demonstrated ones: whether they are equivalent, and whether they are identical."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.tool_schema import check_call, function_of
from turnwise.types import ToolCall


def equivalent(made: Sequence[ToolCall], expected: Sequence[ToolCall], tools: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Returns whether calls are equivalent to the expected ones by the functional rule (PivotRL, arXiv:2603.21383,
    Appendix A.2).

    The calls of one turn run in parallel, so their order does not matter. Each expected call is matched to one made
    call, and no call may be left over. Two calls match if they name the same tool and their values are equal in a
    normal form: an argument with a default may be left out, numbers are compared as numbers, and the outer whitespace
    of text is ignored. With ``tools``, a made call must also fit the schema of its tool. Two empty sequences match.
    """
    if len(made) != len(expected):
        return False
    if not made:
        return True
    if tools and any(check_call({"name": call.name, "arguments": call.arguments}, tools) for call in made):
        return False
    defaults = {str(function_of(tool).get("name")): _defaults(tool) for tool in tools}
    rest = list(made)
    for true in expected:  # matching is an equivalence relation, so any matching call may be chosen
        place = next((i for i, call in enumerate(rest) if _fits(call, true, defaults.get(true.name, {}))), None)
        if place is None:
            return False
        del rest[place]
    return True


def identical(made: Sequence[ToolCall], expected: Sequence[ToolCall]) -> bool:
    """Returns whether calls are equal to the expected ones by the strict rule: the same calls in the same order with
    exactly the same arguments.
    """
    return len(made) == len(expected) and all(
        call.name == true.name and same_value(dict(call.arguments), dict(true.arguments))
        for call, true in zip(made, expected, strict=True)
    )


def miss_rate(functional: Sequence[bool], strict: Sequence[bool]) -> float | None:
    """Returns Pr[strict = 0 | functional = 1]: the fraction of functionally correct actions that an exact match
    rejects. The result is None if no action was functionally correct.
    """
    missed = [not exact for good, exact in zip(functional, strict, strict=True) if good]
    return sum(missed) / len(missed) if missed else None


def same_value(a: Any, b: Any) -> bool:
    """Returns whether two JSON values are equal. 1 equals 1.0, because JSON has one kind of number. True does not equal
    1, unlike in Python.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same_value, a, b))
    return bool(a == b)


def _defaults(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the default value of each optional parameter of a tool that has one."""
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
