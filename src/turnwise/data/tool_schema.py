"""Reads the JSON schemas of tools and checks tool calls against them, as far as tool definitions use JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from turnwise.errors import first_mistake
from turnwise.files import parse_json
from turnwise.types import ToolCall, function_of

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (Mapping,),
    "array": (list, tuple),
    "null": (type(None),),
}

_WORDS = {  # type names in benchmarks and data sets -> JSON Schema's types
    "dict": "object",
    "float": "number",
    "double": "number",
    "tuple": "array",
    "list": "array",
    "str": "string",
    "int": "integer",
    "bool": "boolean",
}


def json_type(word: str) -> str:
    return _WORDS.get(word, word)


def make_tool(name: str, about: str, **parameters: tuple[str, str]) -> dict[str, Any]:
    """A tool definition for chat templates. Each further keyword argument describes one required parameter as a pair
    (JSON type, description).
    """
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters), "additionalProperties": False}
    return tool_of(name, about, schema)


def tool_of(name: str, about: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool definition for chat templates, with the JSON schema of the tool's parameters."""
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def name_of(definition: Mapping[str, Any]) -> str:
    return str(function_of(definition)["name"])


def parameters_of(definition: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """A tool's parameters in order (name -> JSON schema)."""
    properties: Mapping[str, Mapping[str, Any]] = function_of(definition)["parameters"]["properties"]
    return properties


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a tool call, which may be an object or JSON text; a ValueError if the text is not JSON, a
    TypeError if it is not an object.
    """
    arguments = function_of(call).get("arguments")
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError as error:
            raise ValueError(f"arguments are not JSON ({error})") from error
    if not isinstance(arguments, Mapping):
        raise TypeError(f"arguments must be an object, got {type(arguments).__name__}")
    return dict(arguments)


def check_call(call: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Messages about the mistakes in a tool call; none if the call fits one of ``tools``. Worlds show them to the
    policy, so their wording is part of an episode.

    Only the keywords ``type``, ``required``, ``properties``, ``additionalProperties: false``, ``items``, ``enum`` and
    ``const`` of a schema are checked.
    """
    known = {function_of(tool).get("name"): function_of(tool) for tool in tools}
    name = function_of(call).get("name")
    if not isinstance(name, str) or name not in known:
        return [f"calls {name!r}, but its tools are {sorted(map(str, known))}"]
    try:
        arguments = arguments_of(call)
    except (ValueError, TypeError) as error:
        return [f"call of {name!r}: {error}"]
    schema = known[name].get("parameters") or {}
    return [
        f"call of {name!r}: {problem}" for problem in check_value(arguments, {"type": "object", **schema}, "arguments")
    ]


def misfits(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """:func:`check_call` of a parsed call."""
    return check_call({"name": call.name, "arguments": call.arguments}, tools)


class _Schema(BaseModel):
    """What the functions of this module, and chat templates, take for granted in a JSON schema."""

    properties: dict[str, _Schema | bool] | None = None
    required: list[str] | None = None
    enum: list[Any] | None = None
    type: str | list[str | None] | None = None
    items: _Schema | bool | str | list[Any] | None = None


class _Function(BaseModel):
    name: str
    parameters: _Schema | None = None


def check_tool(tool: Any) -> str | None:
    """A message about the first mistake in the definition of a tool, or None if the definition can be used."""
    if not isinstance(tool, Mapping) or not isinstance(function_of(tool).get("name"), str):
        return "a tool must be an object with a name, as {'type': 'function', 'function': {'name', 'parameters'}}"
    try:
        _Function.model_validate(dict(function_of(tool)), strict=True)
    except ValidationError as error:
        return f"tool {function_of(tool)['name']!r}: {first_mistake(error)[1]}"
    return None


def check_value(value: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    """A message for each place where ``value``, which the messages call ``where``, violates ``schema``."""
    wanted = schema.get("type")
    types = [wanted] if isinstance(wanted, str) else list(wanted or ())
    if types and not any(_is(value, name) for name in types):
        return [f"{where} must be {' or '.join(map(str, types))}, got {_kind(value)}"]
    problems = []
    if schema.get("enum") is not None and value not in schema["enum"]:
        problems.append(f"{where} must be one of {schema['enum']}, got {value!r}")
    if "const" in schema and value != schema["const"]:
        problems.append(f"{where} must be {schema['const']!r}, got {value!r}")
    if isinstance(value, Mapping):
        properties = schema.get("properties") or {}
        problems += [f"{where} lacks {name!r}" for name in schema.get("required") or () if name not in value]
        if schema.get("additionalProperties") is False:
            problems += [f"{where} has no parameter {name!r}" for name in value if name not in properties]
        for name, item in value.items():
            if isinstance(properties.get(name), Mapping):
                problems += check_value(item, properties[name], f"{where}.{name}")
    if isinstance(value, list | tuple) and isinstance(schema.get("items"), Mapping):
        for i, item in enumerate(value):
            problems += check_value(item, schema["items"], f"{where}[{i}]")
    return problems


def _is(value: Any, name: str) -> bool:
    if name not in _TYPES:
        return True
    if isinstance(value, bool) and name in ("integer", "number"):
        return False
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _kind(value: Any) -> str:
    names = ("null", "boolean", "integer", "number", "string", "object", "array")
    return next((name for name in names if _is(value, name)), type(value).__name__)


def signature(tool: Mapping[str, Any]) -> str:
    """A tool's signature in one line, such as ``ls(a?)``. A question mark marks an optional parameter."""
    function = function_of(tool)
    schema = function.get("parameters") or {}
    required = schema.get("required") or ()
    names = [name if name in required else f"{name}?" for name in schema.get("properties") or {}]
    return f"{function['name']}({', '.join(names)})"


def json_schema(node: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a tool's parameter that a benchmark describes with Python's type names, such as ``dict``."""
    schema = {key: value for key, value in node.items() if key in ("description", "enum", "default", "required")}
    kind = node.get("type")
    if isinstance(kind, str) and kind != "any":
        schema["type"] = json_type(kind)
    if isinstance(node.get("properties"), Mapping):
        schema["properties"] = {name: json_schema(about) for name, about in node["properties"].items()}
    if isinstance(node.get("items"), Mapping):
        schema["items"] = json_schema(node["items"])
    return schema
