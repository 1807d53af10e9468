"""Defines the parts of a model's reply (thinking, prose and tool calls), and functions that all parsers share.

A reply is untrusted text of a model. It is never evaluated. Its size, its number of calls and the depth of its
arguments are limited. Every mistake in a reply raises :class:`ToolCallError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.json_and_yaml import STRICT
from turnwise.types import ToolCall

MAX_CHARS = 65_536  # largest length of a reply in characters
MAX_CALLS = 64
MAX_DEPTH = 32  # largest number of levels of nested lists and objects in the arguments
MAX_NAME = 256  # largest length in characters of the name of a tool or of a parameter


class ToolCallError(ValueError):
    """Raised if a reply does not follow its tool-call format, or exceeds a limit. Parsers raise no other exception."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The parts of a reply. Tool calls inside the thinking are not parsed."""

    thinking: str
    content: str  # the text outside the calls, without outer whitespace
    calls: tuple[ToolCall, ...]


class Parser(Protocol):
    """A function that parses a model's reply. Each parser reads one format of tool calls.

    ``tools`` are the tool definitions that the policy saw. If a format writes all argument values as text, its parser
    takes the types of the values from these definitions.

    Raises:
        ToolCallError: the text does not follow the format.
    """

    def __call__(self, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reply: ...


def checked_call(name: Any, arguments: Any) -> ToolCall:
    """Returns a tool call, after checking that its name is valid and that its arguments are a JSON object.

    Raises:
        ToolCallError: the name or the arguments are not valid.
    """
    _check_name(name, "the name of a tool")
    if not isinstance(arguments, Mapping):
        raise ToolCallError(f"the arguments of {name!r} must be an object, got {type(arguments).__name__}")
    for parameter in arguments:
        _check_name(parameter, f"a parameter of {name!r}")
    _check_value(arguments, 0)
    return ToolCall(name, dict(arguments))


def checked_calls(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Returns the calls of a reply as a tuple.

    Raises:
        ToolCallError: there are more than ``MAX_CALLS`` calls.
    """
    if len(calls) > MAX_CALLS:
        raise ToolCallError(f"the reply has {len(calls)} calls, more than {MAX_CALLS}")
    return tuple(calls)


def decode_json(text: str, start: int) -> tuple[Any, int]:
    """Returns the JSON value at index ``start`` of ``text``, or after whitespace there, and the index after the value.

    Raises:
        ToolCallError: there is no JSON value, an object has a key twice, or the value contains NaN or infinity.
    """
    start = skip_space(text, start)
    try:
        return STRICT.raw_decode(text, start)
    except RecursionError as error:
        raise ToolCallError("JSON nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, or an error that the hooks of STRICT raise
        raise ToolCallError(f"broken JSON at character {start}: {error}") from error


def skip_space(text: str, at: int) -> int:
    """Returns the index of the first character at or after index ``at`` that is not whitespace."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def expect(text: str, at: int, token: str) -> int:
    """Returns the index after ``token``, which must begin at index ``at`` of ``text`` or after whitespace there.

    Raises:
        ToolCallError: ``text`` contains something else at this place.
    """
    at = skip_space(text, at)
    if not text.startswith(token, at):
        raise ToolCallError(f"expected {token!r} at character {at}, found {text[at : at + 20]!r}")
    return at + len(token)


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME:
        found = repr(name[:40]) if isinstance(name, str) else type(name).__name__  # deep lists have no repr
        raise ToolCallError(f"{what} must be text of 1 to {MAX_NAME} characters, got {found}")
    _check_value(name, 0)


def _check_value(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ToolCallError(f"arguments nested deeper than {MAX_DEPTH}")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ToolCallError(f"the keys of an object must be text, got {key!r}")
            _check_value(key, depth)
            _check_value(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_value(item, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ToolCallError(f"{value} is no JSON number")
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ToolCallError("half a surrogate pair in a name or value") from error
    elif value is not None and not isinstance(value, bool | int | float):
        raise ToolCallError(f"{type(value).__name__} is no JSON value")
