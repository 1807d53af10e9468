"""Compares a value of a configuration with the type annotation of a parameter, and describes annotations in words."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin


def matches(value: Any, annotation: Any) -> bool:
    """Returns whether a value from a YAML file fits a type annotation. A node with a ``_target_`` always fits."""
    if annotation is Any or (isinstance(value, Mapping) and "_target_" in value):
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return any(value == allowed and type(value) is type(allowed) for allowed in arguments)
    if origin in (Union, types.UnionType):
        return any(matches(value, argument) for argument in arguments)
    if origin is not None or annotation in (list, tuple, set, dict, Sequence, Mapping):
        return _matches_container(value, origin or annotation, arguments)
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is Path:
        return isinstance(value, str)
    return isinstance(value, annotation) if isinstance(annotation, type) else True


def _matches_container(value: Any, kind: Any, arguments: tuple[Any, ...]) -> bool:
    if kind in (dict, Mapping):
        inner = arguments[1] if len(arguments) == 2 else Any
        return isinstance(value, Mapping) and all(matches(item, inner) for item in value.values())
    if kind in (list, tuple, set, Sequence):
        if not isinstance(value, list):
            return False
        if kind is tuple and arguments and arguments[-1] is not Ellipsis:
            pairs = zip(value, arguments, strict=False)
            return len(value) == len(arguments) and all(matches(item, inner) for item, inner in pairs)
        inner = arguments[0] if arguments else Any
        return all(matches(item, inner) for item in value)
    return True


def describe(annotation: Any) -> str:
    """Returns a type annotation in words, for example ``float``, ``one of keep, drop`` or ``int or null``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join(describe(argument) for argument in arguments)
    if annotation is None or annotation is type(None):
        return "null"
    if origin in (list, tuple, Sequence, set) or annotation in (list, tuple, Sequence, set):
        return "a list" + (f" of {describe(arguments[0])}" if arguments else "")
    if origin in (dict, Mapping) or annotation in (dict, Mapping):
        return "a mapping"
    if annotation is Path:
        return "a path"
    return getattr(annotation, "__name__", str(annotation))
