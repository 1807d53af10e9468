"""Parses untrusted JSON and YAML."""

from __future__ import annotations

import json
from typing import Any

import yaml


class TwiceError(ValueError):
    """Raised if a JSON object has a key twice. Python's JSON reader would silently drop the first value."""

    def __init__(self, key: str) -> None:
        super().__init__(f"an object names the key {key!r} twice")
        self.key = key


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Converts key-value pairs of a JSON object (``object_pairs_hook``) to a dictionary, or raises a TwiceError."""
    if len(found := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise TwiceError(next(name for name in found if names.count(name) > 1))
    return found


def refuse_constant(constant: str) -> None:
    """Refuses NaN and infinities, which Python's JSON reader passes to ``parse_constant``."""
    raise ValueError(f"{constant} is not JSON")


STRICT = json.JSONDecoder(object_pairs_hook=once, parse_constant=refuse_constant)


def parse_json(text: str | bytes) -> Any:
    """Returns the value of an untrusted JSON text, after checking that all strings in it can be written as UTF-8.

    Raises:
        ValueError: the text is not JSON, contains NaN or an infinity, is nested too deeply, or holds half of a
            surrogate pair.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")  # ``json.loads`` of bytes would accept half of a surrogate pair
        return whole_characters(json.loads(text, parse_constant=refuse_constant))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def whole_characters(value: Any) -> Any:
    """Returns the JSON value ``value`` unchanged, after checking that all strings in it can be written as UTF-8.

    Raises:
        ValueError: a string holds half of a surrogate pair, or the value is nested too deeply.
    """
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("the JSON value holds half a surrogate pair") from error
    except RecursionError as error:
        raise ValueError("the JSON value is nested too deeply") from error
    return value


def parse_yaml(text: str | bytes) -> Any:
    """Returns the content of a YAML text.

    Raises:
        ValueError: the text is not YAML, is nested too deeply, or holds an impossible value such as a date with month
            13.
    """
    try:
        # libyaml's loader would be faster, but a deeply nested text overflows its stack and kills the process
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not YAML ({' '.join(str(error).split())})") from error
