"""Finds tool definitions in a record or in the text of its system prompt, and converts them to OpenAI's form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from turnwise.data.tool_schema import check_tool, function_of, json_type
from turnwise.data.toolcalls.bfcl_python import python_literal
from turnwise.data.toolcalls.parsing import ToolCallError, decode_json, skip_space

_TAGGED = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_LIST = re.compile(r"\[\s*\{")
_PLAIN = {"string", "integer", "number", "boolean", "object", "array"}  # types of JSON Schema


def tools_in(prompt: str) -> list[Any]:
    """Returns the tools that a system prompt lists in ``<tools>`` tags (Hermes, Qwen) or as a JSON array (ToolACE).

    The prompt is only parsed, and no code in it is evaluated. The result is empty if no tools can be read.
    """
    for found in _TAGGED.finditer(prompt):  # the prompt may also mention the tags in the text before the list
        if tools := [tool for tool in _values(found[1]) if check_tool(tool) is None]:
            return tools
    for found in _LIST.finditer(prompt):
        try:
            tools, _ = decode_json(prompt, found.start())
        except ToolCallError:
            continue
        if all(check_tool(_renamed(tool)) is None for tool in tools):
            return list(tools)
    return []


def openai_tool(tool: Any) -> Any:
    """Returns a tool definition as ``{"type": "function", "function": {...}}`` with a JSON schema.

    In ToolACE's definitions, the key ``arguments`` becomes ``parameters``, and types such as ``dict`` get their names
    in JSON Schema (``object``). In xLAM's definitions, the parameters are a mapping from names to descriptions with
    Python types (``List[int]``, ``str, optional``), which becomes a JSON schema. A value that is not a tool definition
    is returned unchanged.
    """
    tool = _named(_renamed(tool))
    if check_tool(tool) is not None:
        return tool
    function = dict(function_of(tool))
    function.pop("type", None)  # "type": "function" of the flat form
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**function, "parameters": _schema(parameters)}}


def _renamed(tool: Any) -> Any:
    if not isinstance(tool, Mapping) or not isinstance(tool.get("arguments"), Mapping) or "parameters" in tool:
        return tool
    return {**{key: value for key, value in tool.items() if key != "arguments"}, "parameters": tool["arguments"]}


def _named(tool: Any) -> Any:
    """Returns a tool with a JSON schema in place of parameters that map names to descriptions (as in xLAM)."""
    listed = tool.get("parameters") if isinstance(tool, Mapping) else None
    if not isinstance(listed, Mapping) or not listed or isinstance(listed.get("type"), str):
        return tool
    if not all(isinstance(value, Mapping) and "type" in value for value in listed.values()):
        return tool
    properties, required = {}, []
    for name, value in listed.items():
        word = str(value["type"])
        base = re.split(r"\W", word.strip().lower(), maxsplit=1)[0]
        known = {"type": json_type(base)} if json_type(base) in _PLAIN else {}
        properties[name] = {key: item for key, item in value.items() if key != "type"} | known
        if "optional" not in word.lower() and "default" not in value:
            required.append(name)
    return {**tool, "parameters": {"type": "object", "properties": properties, "required": required}}


def _schema(node: Any) -> Any:
    """Returns a schema in which every type has its JSON Schema name (``object``, not ``dict``).

    The key ``required`` is dropped wherever its value is not a list of names.
    """
    if isinstance(node, list):
        return [_schema(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    found = {key: value if key in ("default", "enum", "const") else _schema(value) for key, value in node.items()}
    if isinstance(node.get("type"), str):
        found["type"] = json_type(node["type"])
        if found["type"] == "any":
            del found["type"]
    if "required" in node and not isinstance(node["required"], list | Mapping):
        del found["required"]  # its value is null in ToolACE, and a flag of each parameter in other data sets
    return found


def _values(text: str) -> list[Any]:
    """Returns the JSON values that follow one another in a text, or the values of a text that is one Python literal.

    A list is replaced by its items.
    """
    found: list[Any] = []
    at = skip_space(text, 0)
    try:
        while at < len(text):
            value, at = decode_json(text, at)
            found += value if isinstance(value, list) else [value]
            at = skip_space(text, at)
    except ToolCallError:
        try:
            value = python_literal(text)
        except ToolCallError:
            return found
        return value if isinstance(value, list) else [value]
    return found
