"""Compares tool calls of the policy with demonstrated tool calls, by a functional rule and by a strict rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.tool_schema import check_call, function_of
from turnwise.types import ToolCall


def equivalent(made: Sequence[ToolCall], expected: Sequence[ToolCall], tools: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Returns whether the calls ``made`` are equivalent to the calls ``expected`` by the functional rule (PivotRL,
    arXiv:2603.21383, Appendix A.2).

    The calls of one turn run in parallel, so their order does not matter. Each expected call must match one made call,
    and no call may be left over. Two calls match if they name the same tool and have equal arguments. Numbers are
    compared as numbers, and whitespace at both ends of a text is ignored. An optional argument that is left out has the
    default value from the tool's schema in ``tools``. If ``tools`` is given, each made call must also fit the schema of
    its tool. Two empty sequences are equivalent.
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


def _defaults(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the default values of a tool's optional parameters that have one: name -> default."""
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
