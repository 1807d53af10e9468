"""Refuses passwords and API keys in a configuration before anything is written or printed. No message repeats them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from turnwise.config.schema import ConfigError

# matches //user:password@ in an address; the password may contain a slash
_USER = re.compile(r"//[^\s/?#]*@|//[^\s/@]*:(?!\d+(?:/|$))[^\s@]*@")
_ADDRESS = re.compile(r"(?:^|[._])(?:urls?|retriever)(?:\.\d+)?$")  # keys whose values are addresses
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_NAMED = re.compile(r"key_variable['\"]?\s*[=:]\s*(?P<value>[^\s,}]*)")


def refuse_secrets(arguments: Iterable[str]) -> None:
    """Refuses overrides that hold a password or an API key, because Hydra's own messages would repeat them. The
    ConfigError names the key of each of these overrides but no part of its value.
    """
    mistakes = [mistake for argument in arguments for mistake in _in_override(argument)]
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))


def secrets_in(tree: Any, path: str = "") -> Iterator[str]:
    """Yields a message for each address that contains a user or a password or has an invalid port, and for each value
    of ``key_variable`` that is not the name of an environment variable.
    """
    children = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in children:
        place = f"{path}.{key}" if path else str(key)
        if str(key) == "key_variable" and isinstance(value, str):
            if not _VARIABLE.fullmatch(value):
                yield _no_variable(place)
        elif isinstance(value, str):
            if _holds_user(value) or (_ADDRESS.search(place) and "@" in value.split("/")[0]):
                yield _credentials(place)
            elif value.startswith(("http://", "https://")):
                yield from _misplaced(value, place)
        else:
            yield from secrets_in(value, place)


def _in_override(argument: str) -> Iterator[str]:
    key, equals, value = argument.partition("=")
    place = key.lstrip("+~") if equals and re.fullmatch(r"[+~]*[\w./-]+", key) else "an argument"
    bare = _ADDRESS.search(place) and any("@" in item.split("/")[0] for item in re.split(r"[\[\],'\"]+", value))
    if bare or _holds_user(argument):
        yield _credentials(place)
    whole = [value] if place.endswith("key_variable") else [named["value"] for named in _NAMED.finditer(argument)]
    for given in (item.strip("'\" ") for text in whole for item in text.split(",")):
        if given not in ("null", "???") and not given.startswith("${") and not _VARIABLE.fullmatch(given):
            yield _no_variable(place)


def _holds_user(text: str) -> bool:
    return _USER.search(text) is not None


def _misplaced(value: str, place: str) -> Iterator[str]:
    try:
        port = urlsplit(value).port
    except ValueError:  # for example an IPv6 address without its closing bracket
        yield f"{place}: the address needs a valid host and port; a port is a number from 1 to 65535"
        return
    if port == 0:
        yield f"{place}: the port of the address must be a number from 1 to 65535, got 0"


def _credentials(place: str) -> str:
    return (
        f"{place}: the address contains a user name or a password, which would be saved with the run; leave out both, "
        "and put the key into the environment variable that key_variable names"
    )


def _no_variable(place: str) -> str:
    return (
        f"{place}: give the NAME of an environment variable (capital letters, digits and _), not the key itself; "
        "export the key under a name such as TURNWISE_JUDGE_KEY and give that name"
    )
