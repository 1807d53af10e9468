"""Reads the JSON schemas of tools and checks tool calls against them, as far as tool definitions use JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.files import parse_json

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
    """Returns the JSON Schema name of a type, given its name in Python or in a benchmark (``dict`` is ``object``)."""
    return _WORDS.get(word, word)


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the dictionary that holds a tool's name and parameters, or a tool call's name and arguments.

    This is the value of the key ``function``, or ``tool`` itself if it has no key ``function``.
    """
    function = tool.get("function", tool)
    return function if isinstance(function, Mapping) else {}


def make_tool(name: str, about: str, **parameters: tuple[str, str]) -> dict[str, Any]:
    """Returns a tool definition for chat templates, with the parameters' JSON schema.

    Each further keyword argument describes one parameter of the tool as a pair (JSON type, description). All parameters
    are required.
    """
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


def name_of(definition: Mapping[str, Any]) -> str:
    """Returns the name of a tool, given its definition as :func:`make_tool` makes it."""
    return str(function_of(definition)["name"])


def parameters_of(definition: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Returns a tool's parameters in order (name -> JSON schema), given its definition as from :func:`make_tool`."""
    found: Mapping[str, Mapping[str, Any]] = function_of(definition)["parameters"]["properties"]
    return found


def arguments_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a tool call, which may be an object or JSON text, as a dictionary.

    Raises:
        ValueError: the arguments are a text that is not JSON.
        TypeError: the arguments are not an object.
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
    """Returns messages about the mistakes in a tool call, or an empty list if the call fits one of ``tools``.

    The name must be that of a tool, and the arguments must follow the tool's schema. Only the keywords ``type``,
    ``required``, ``properties``, ``additionalProperties: false``, ``items``, ``enum`` and ``const`` are checked.
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


def check_tool(tool: Any) -> str | None:
    """Returns a message about the first mistake in the definition of a tool, or None if the definition can be used."""
    if not isinstance(tool, Mapping) or not isinstance(function_of(tool).get("name"), str):
        return "a tool must be an object with a name, as {'type': 'function', 'function': {'name', 'parameters'}}"
    parameters = function_of(tool).get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        return f"the parameters of tool {function_of(tool)['name']!r} must be a JSON schema (an object)"
    problem = _check_schema(parameters or {}, "parameters")
    return problem and f"tool {function_of(tool)['name']!r}: {problem}"


def _check_schema(schema: Mapping[str, Any], where: str) -> str | None:
    for key, kind, what in (
        ("properties", Mapping, "an object"),
        ("required", list, "a list"),
        ("enum", list, "a list"),
    ):
        if schema.get(key) is not None and not isinstance(schema[key], kind):
            return f"{where}.{key} must be {what}, got {_kind(schema[key])}"
    if wrong := [
        name for name, about in (schema.get("properties") or {}).items() if not isinstance(about, Mapping | bool)
    ]:
        return f"{where}.{wrong[0]} must be a JSON schema, got {_kind(schema['properties'][wrong[0]])}"
    if wrong := [name for name in schema.get("required") or () if not isinstance(name, str)]:
        return f"{where}.required must name parameters, got {_kind(wrong[0])}"
    types = schema.get("type")
    for name in types if isinstance(types, list) else [types]:
        if name is not None and not isinstance(name, str):
            return f"{where}.type must be text or a list of texts, got {_kind(name)}"
    inner = {**(schema.get("properties") or {}), "items": schema.get("items")}
    found = (_check_schema(about, f"{where}.{name}") for name, about in inner.items() if isinstance(about, Mapping))
    return next(filter(None, found), None)


def check_value(value: Any, schema: Mapping[str, Any], where: str) -> list[str]:
    """Returns a message for each place where ``value``, which the messages call ``where``, violates ``schema``."""
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
    """Returns a tool's signature in one line, such as ``ls(a?)``. A question mark marks an optional parameter."""
    function = function_of(tool)
    schema = function.get("parameters") or {}
    required = schema.get("required") or ()
    names = [name if name in required else f"{name}?" for name in schema.get("properties") or {}]
    return f"{function['name']}({', '.join(names)})"


def json_schema(node: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON Schema of a tool's parameter that a benchmark describes with Python's type names.

    The type names in ``node``, the benchmark's description, are for example ``dict``, ``float``, ``tuple`` and ``any``.
    """
    found = {key: value for key, value in node.items() if key in ("description", "enum", "default", "required")}
    kind = node.get("type")
    if isinstance(kind, str) and kind != "any":
        found["type"] = json_type(kind)
    if isinstance(node.get("properties"), Mapping):
        found["properties"] = {name: json_schema(about) for name, about in node["properties"].items()}
    if isinstance(node.get("items"), Mapping):
        found["items"] = json_schema(node["items"])
    return found
