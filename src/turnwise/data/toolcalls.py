"""Parses and writes the tool calls in a model's reply, in four text formats.

A reply is untrusted text of a model. It is never evaluated. Its size, its number of calls and the depth of its
arguments are limited. Every mistake in a reply raises :class:`ToolCallError`. A new format needs a parser in ``PARSERS``
and a branch in ``write_calls``.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turnwise.files import STRICT
from turnwise.types import Message, ToolCall, function_of

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


Parser = Callable[..., Reply]
"""A function (text, tools) that parses a model's reply in one format of tool calls, or raises a ToolCallError. ``tools``
are the tool definitions that the policy saw. Only a format that writes all values as text (``qwen_xml``) needs them.
"""


def checked_call(name: Any, arguments: Any) -> ToolCall:
    _check_name(name, "the name of a tool")
    if not isinstance(arguments, Mapping):
        raise ToolCallError(f"the arguments of {name!r} must be an object, got {type(arguments).__name__}")
    for parameter in arguments:
        _check_name(parameter, f"a parameter of {name!r}")
    _check_value(arguments, 0)
    return ToolCall(name, dict(arguments))


def _reply(thinking: str, prose: Sequence[str], calls: Sequence[ToolCall]) -> Reply:
    if len(calls) > MAX_CALLS:
        raise ToolCallError(f"the reply has {len(calls)} calls, more than {MAX_CALLS}")
    return Reply(thinking, " ".join(filter(None, map(str.strip, prose))), tuple(calls))


def decode_json(text: str, start: int) -> tuple[Any, int]:
    """Returns the JSON value at index ``start`` of ``text``, or after whitespace there, and the index after the value.
    NaN, infinities and keys that an object names twice are refused.
    """
    start = skip_space(text, start)
    try:
        return STRICT.raw_decode(text, start)
    except RecursionError as error:
        raise ToolCallError("JSON nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, or an error that the hooks of STRICT raise
        raise ToolCallError(f"broken JSON at character {start}: {error}") from error


def skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def expect(text: str, at: int, token: str) -> int:
    """Returns the index after ``token``, which must begin at index ``at`` of ``text`` or after whitespace there."""
    at = skip_space(text, at)
    if not text.startswith(token, at):
        raise ToolCallError(f"expected {token!r} at character {at}, found {text[at : at + 20]!r}")
    return at + len(token)


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME:
        shown = repr(name[:40]) if isinstance(name, str) else type(name).__name__  # deep lists have no repr
        raise ToolCallError(f"{what} must be text of 1 to {MAX_NAME} characters, got {shown}")
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


REASONING = ("reasoning_content", "reasoning", "thinking")  # keys of chat messages that may hold reasoning

OPEN_THINKING, CLOSE_THINKING = "<think>", "</think>"


def split_thinking(text: str) -> tuple[str, str]:
    """Returns the thinking of a reply and the text after it, both without outer whitespace.

    Thinking is all text up to the last ``</think>``, as in :meth:`turnwise.data.chat_tokens.ChatTokens.decode`. A text
    of more than ``MAX_CHARS`` characters, or that begins with thinking that is never closed, is a ToolCallError.
    """
    if len(text) > MAX_CHARS:
        raise ToolCallError(f"the reply has {len(text)} characters, more than {MAX_CHARS}")
    thinking, _, rest = text.rpartition(CLOSE_THINKING)
    rest = rest.strip()
    if rest.startswith(OPEN_THINKING):
        raise ToolCallError(f"{OPEN_THINKING} is never closed")
    return thinking.strip().removeprefix(OPEN_THINKING).strip(), rest


def reasoning_of_reply(message: Message) -> tuple[str | None, str]:
    """Splits an assistant message into its reasoning, or None, and its content without reasoning. The reasoning is the
    value of a key of ``REASONING``, or else the thinking block at the start of the content.
    """
    content = str(message.get("content") or "")
    for key in REASONING:
        if isinstance(message.get(key), str) and message[key].strip():
            return message[key].strip(), content
    try:
        thinking, content = split_thinking(content)
    except ToolCallError:  # a demonstrated reply may be longer than the limit, or its thinking may never be closed
        return None, content
    return thinking or None, content


OPEN, CLOSE = "<tool_call>", "</tool_call>"


def hermes(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reply:
    """Parses a reply of prose and calls ``<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>``.

    The JSON object of a call must have the keys ``name`` and ``arguments`` and no other. The parser finds the object's
    end by reading the JSON, so a closing tag inside a text argument has no effect.
    """
    thinking, rest = split_thinking(text)
    prose, calls, at = [], [], 0
    while (start := rest.find(OPEN, at)) >= 0:
        prose.append(rest[at:start])
        value, at = decode_json(rest, start + len(OPEN))
        if not isinstance(value, Mapping) or value.keys() != {"name", "arguments"}:
            raise ToolCallError("a call must be an object with the keys name and arguments, and no other")
        calls.append(checked_call(value["name"], value["arguments"]))
        at = expect(rest, at, CLOSE)
    prose.append(rest[at:])
    if any(CLOSE in part for part in prose):
        raise ToolCallError(f"{CLOSE} without {OPEN}")
    return _reply(thinking, prose, calls)


TAG = "<|python_tag|>"
_ENDS = ("<|eom_id|>", "<|eot_id|>")


def llama_json(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reply:
    """Parses a reply that is prose, or calls such as ``{"name": "f", "parameters": {"a": 1}}``.

    Whitespace or ``;`` separates the calls. The tag ``<|python_tag|>`` may come before the first call. In a call, the
    key ``arguments`` may replace ``parameters``, and ``"type": "function"`` is allowed. A reply that begins neither
    with the tag nor with ``{`` is prose.
    """
    thinking, rest = split_thinking(text)
    for end in _ENDS:
        rest = rest.removesuffix(end).rstrip()
    if not rest.startswith((TAG, "{")):
        if TAG in rest:
            raise ToolCallError(f"{TAG} after prose")
        return Reply(thinking, rest, ())
    at = len(TAG) if rest.startswith(TAG) else 0
    calls = []
    while True:
        value, at = decode_json(rest, at)
        calls.append(_llama_call(value))
        at = skip_space(rest, at)
        if rest.startswith(";", at):
            at = skip_space(rest, at + 1)
        if at == len(rest):
            return _reply(thinking, [], calls)


def _llama_call(value: Any) -> ToolCall:
    if not isinstance(value, Mapping) or value.get("type", "function") != "function":
        raise ToolCallError("a call must be an object with the keys name and parameters")
    keys = value.keys() - {"type"}
    if keys not in ({"name", "parameters"}, {"name", "arguments"}):
        raise ToolCallError(f"a call must have the keys name and parameters, got {sorted(keys)[:8]}")
    return checked_call(value["name"], value["parameters"] if "parameters" in keys else value["arguments"])


_BEGINS = re.compile(r"\[|[^\W\d][\w.]{0,255}\(")
_NAMES = {"true": True, "false": False, "null": None}


def bfcl_python(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reply:
    """Parses a reply that is a list of calls such as ``[f(a=1, b="x"), g.h()]``, a single call ``f(a=1)``, or prose.

    Each argument must have a name and a Python literal as its value. Tuples become lists. JSON's ``true``, ``false``
    and ``null`` are also accepted. A reply is prose if it begins neither with ``[`` nor with a name and ``(``.
    """
    thinking, rest = split_thinking(text)
    if not _BEGINS.match(rest):
        return Reply(thinking, rest, ())
    body = _parsed(rest)
    nodes = body.elts if isinstance(body, ast.List) else [body]
    return _reply(thinking, [], [_python_call(node) for node in nodes])


def _parsed(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about invalid escapes in the policy's text
            return ast.parse(text, mode="eval").body
    # The interpreter raises these exceptions when brackets are nested too deeply, its parser's stack is full, or the
    # syntax tree is too deep. In a thread, Python 3.11 raises SystemError.
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError) as error:
        raise ToolCallError(f"no Python expression: {error}") from error


def _python_call(node: ast.expr) -> ToolCall:
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


_NAME = re.compile(r"[^<>\n]{1,256}(?=>)")


def qwen_xml(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reply:
    """Parses a reply with any number of calls
    ``<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`` and prose around them.

    There may be whitespace between the tags. The value of an argument is the text between its tags, without one newline
    at each end. If the tool's schema in ``tools`` says that the parameter is a string, the value is this text. In all
    other cases, and without a schema, the text is parsed as JSON, or as ``True``, ``False`` or ``None``. If this fails,
    the value is the text.
    """
    thinking, rest = split_thinking(text)
    prose, calls, at = [], [], 0
    while (start := rest.find(OPEN, at)) >= 0:
        prose.append(rest[at:start])
        call, at = _xml_call(rest, start + len(OPEN), tools)
        calls.append(call)
    prose.append(rest[at:])
    if any(tag in part for part in prose for tag in (CLOSE, "<function=", "</function>")):
        raise ToolCallError(f"a tag of a call outside {OPEN} ... {CLOSE}")
    return _reply(thinking, prose, calls)


def _xml_call(text: str, at: int, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, int]:
    name, at = _name(text, expect(text, at, "<function="))
    types = _types(name, tools)
    arguments: dict[str, Any] = {}
    while text.startswith("<parameter=", at := skip_space(text, at)):
        parameter, at = _name(text, at + len("<parameter="))
        stop = text.find("</parameter>", at)
        if stop < 0:
            raise ToolCallError(f"<parameter={parameter}> is never closed")
        if parameter in arguments:
            raise ToolCallError(f"parameter {parameter!r} stands twice")
        value = text[at:stop].removeprefix("\n").removesuffix("\n")
        arguments[parameter] = _typed(value, types.get(parameter))
        at = stop + len("</parameter>")
    at = expect(text, at, "</function>")
    return checked_call(name, arguments), expect(text, at, CLOSE)


def _name(text: str, at: int) -> tuple[str, int]:
    match = _NAME.match(text, at)
    if match is None:
        raise ToolCallError(f"no name at character {at}: {text[at : at + 20]!r}")
    return match[0].strip(), match.end() + 1


def _types(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    for tool in tools:
        function = function_of(tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key: schema.get("type") for key, schema in properties.items() if isinstance(schema, Mapping)}
    return {}


def _typed(text: str, kind: Any) -> Any:
    if kind == "string":
        return text
    bare = text.strip()
    if bare.lower() in ("none", *_NAMES):
        return _NAMES.get(bare.lower())
    try:
        value, end = decode_json(bare, 0)
    except ToolCallError:
        return text
    return value if end == len(bare) else text


Format = Literal["hermes", "qwen_xml", "llama_json", "bfcl_python"]

PARSERS: Mapping[str, Parser] = {
    "hermes": hermes,
    "qwen_xml": qwen_xml,
    "llama_json": llama_json,
    "bfcl_python": bfcl_python,
}


def parser_of(form: Format | None) -> Parser:
    if form is None:
        raise ValueError(f"format: the format of tool calls is unknown; set it to one of {', '.join(PARSERS)}")
    return PARSERS[form]


def parsed(text: str, form: str, tools: Sequence[Mapping[str, Any]] = ()) -> Reply | None:
    """The parsed reply; None if it does not follow the format ``form``."""
    try:
        return PARSERS[form](text, tools)
    except ToolCallError:
        return None


def chat_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """The calls as the value of ``tool_calls`` in a chat message."""
    return [{"type": "function", "function": {"name": one.name, "arguments": dict(one.arguments)}} for one in calls]


def write_calls(calls: Sequence[ToolCall], form: Format) -> str:
    """Returns the calls as text in the format ``form``, from which ``PARSERS[form]`` reads the same calls back."""
    if not calls:
        raise ValueError("no call to write; a reply without calls is prose")
    if form == "bfcl_python":
        texts = [f"{one.name}({', '.join(f'{key}={item!r}' for key, item in one.arguments.items())})" for one in calls]
        return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    if form == "qwen_xml":
        return "\n".join(map(_xml, calls))
    key = "parameters" if form == "llama_json" else "arguments"
    texts = [json.dumps({"name": call.name, key: dict(call.arguments)}, ensure_ascii=False) for call in calls]
    return "; ".join(texts) if form == "llama_json" else "\n".join(f"{OPEN}\n{text}\n{CLOSE}" for text in texts)


def _xml(call: ToolCall) -> str:
    parameters = ""
    for key, item in call.arguments.items():
        value = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
        parameters += f"<parameter={key}>\n{value}\n</parameter>\n"
    return f"{OPEN}\n<function={call.name}>\n{parameters}</function>\n{CLOSE}"
