"""Writes tool calls as text in a given format. Each writer is the inverse of the format's parser."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from turnwise.data.toolcalls.formats import Format
from turnwise.types import ToolCall


def write_calls(calls: Sequence[ToolCall], form: Format) -> str:
    """Returns the calls as text in the format ``form``, from which ``PARSERS[form]`` reads the same calls back.

    Raises:
        ValueError: ``calls`` is empty.
    """
    if not calls:
        raise ValueError("no call to write; a reply without calls is prose")
    return _WRITERS[form](calls)


def _hermes(calls: Sequence[ToolCall]) -> str:
    objects = [json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False) for call in calls]
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)


def _llama_json(calls: Sequence[ToolCall]) -> str:
    return "; ".join(
        json.dumps({"name": call.name, "parameters": dict(call.arguments)}, ensure_ascii=False) for call in calls
    )


def _qwen_xml(calls: Sequence[ToolCall]) -> str:
    def value(item: object) -> str:
        return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)

    def one(call: ToolCall) -> str:
        given = "".join(f"<parameter={key}>\n{value(item)}\n</parameter>\n" for key, item in call.arguments.items())
        return f"<tool_call>\n<function={call.name}>\n{given}</function>\n</tool_call>"

    return "\n".join(map(one, calls))


def _bfcl_python(calls: Sequence[ToolCall]) -> str:
    """Writes ``f(a=1)`` for one call and ``[f(a=1), g()]`` for several."""
    texts = [f"{call.name}({', '.join(f'{key}={item!r}' for key, item in call.arguments.items())})" for call in calls]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


_WRITERS: Mapping[Format, Callable[[Sequence[ToolCall]], str]] = {
    "hermes": _hermes,
    "qwen_xml": _qwen_xml,
    "llama_json": _llama_json,
    "bfcl_python": _bfcl_python,
}
