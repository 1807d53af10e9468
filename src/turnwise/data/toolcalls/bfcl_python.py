"""Parses the tool-call format of BFCL and Llama, in which calls are written as Python, without evaluating the text."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.thinking import split_thinking
from turnwise.data.toolcalls.parsing import MAX_CHARS, MAX_DEPTH, Reply, ToolCallError, checked_call, checked_calls
from turnwise.types import ToolCall

_BEGINS = re.compile(r"\[|[^\W\d][\w.]{0,255}\(")
_NAMES = {"true": True, "false": False, "null": None}


def bfcl_python(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reply:
    """Parses a reply that is a list of calls such as ``[f(a=1, b="x"), g.h()]``, a single call ``f(a=1)``, or prose.

    Each argument must have a name and a Python literal as its value. Tuples become lists. JSON's ``true``, ``false``
    and ``null`` are also accepted. A reply is prose if it begins neither with ``[`` nor with a name and ``(``. The
    argument ``tools`` is not used, because Python literals show the types of the values.

    Raises:
        ToolCallError: the reply begins like a call but is not a call, or an argument has no name or is not a literal.
    """
    thinking, rest = split_thinking(text)
    if not _BEGINS.match(rest):
        return Reply(thinking, rest, ())
    body = _parsed(rest)
    nodes = body.elts if isinstance(body, ast.List) else [body]
    return Reply(thinking, "", checked_calls([_call(node) for node in nodes]))


def python_literal(text: str) -> Any:
    """Returns the JSON value of a Python literal such as ``{'a': [1, True]}`` without evaluating it.

    Raises:
        ToolCallError: the text is not a Python literal of JSON values, or is longer than ``MAX_CHARS`` characters.
    """
    if len(text) > MAX_CHARS:
        raise ToolCallError(f"the literal has {len(text)} characters, more than {MAX_CHARS}")
    return _literal(_parsed(text.strip()), 0)


def _parsed(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about invalid escapes in the policy's text
            return ast.parse(text, mode="eval").body
    # The interpreter raises these exceptions when brackets are nested too deeply, its parser's stack is full, or the
    # syntax tree is too deep. In a thread, Python 3.11 raises SystemError.
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError) as error:
        raise ToolCallError(f"no Python expression: {error}") from error


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise ToolCallError(f"expected a call, found {type(node).__name__}")
    name = _dotted(node.func)
    if node.args:
        raise ToolCallError(f"an argument of {name!r} has no name")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ToolCallError(f"** in the call of {name!r}")
        if keyword.arg in arguments:
            raise ToolCallError(f"parameter {keyword.arg!r} stands twice")
        arguments[keyword.arg] = _literal(keyword.value, 0)
    return checked_call(name, arguments)


def _dotted(node: ast.expr) -> str:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise ToolCallError(f"a tool's name must be dotted names, found {type(node).__name__}")
    return ".".join([node.id, *reversed(parts)])


def _literal(node: ast.expr, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ToolCallError(f"arguments nested deeper than {MAX_DEPTH}")
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as value)) if (
            not isinstance(value, bool)
        ):
            return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_key(key, depth) for key in keys]
            if len(set(names)) < len(names):
                raise ToolCallError("an object names a key twice")
            return {name: _literal(item, depth + 1) for name, item in zip(names, values, strict=True)}
    raise ToolCallError(f"an argument must be a literal, found {type(node).__name__}")


def _key(node: ast.expr | None, depth: int) -> str:
    key = None if node is None else _literal(node, depth + 1)
    if not isinstance(key, str):
        raise ToolCallError("the keys of an object must be text")
    return key
