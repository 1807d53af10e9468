"""Broken text for parsers: seeds that are cut, nested, repeated and mixed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

LONGEST = 200_000  # bytes of a case
PIECES = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"'",
        b"\\",
        b"\\u",
        b"\\ud800",
        b"\x00",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
    ),
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"-0",
        b"9" * 400,
        b"0.1e-400",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'""',
    ),
    *(
        b"<think>",
        b"</think>",
        b"<tool_call>",
        b"</tool_call>",
        b"<function=",
        b"<parameter=",
        b"</parameter>",
        b"```json",
        b"```",
    ),
    *(
        b"<|im_start|>",
        b"<|im_end|>",
        b"<|python_tag|>",
        b"lambda: 0",
        b"__import__('os')",
        b"**{'a': 1}",
        b"*[1]",
        b"f'{1}'",
    ),
    *(
        b"\r\n",
        b"\n",
        b"\t",
        b",",
        b":",
        b"=",
        b"(",
        b")",
        b"-",
        b"!!python/object:os.system",
        b"&a [*a]",
        b"? ",
        b"- ",
    ),
    *(
        "\u2028".encode(),
        "\u202e".encode(),
        "\U0001f600".encode(),
        b"../../etc/passwd",
        b"%s%n",
        b"{0.__class__}",
        b"${oc.env:HOME}",
    ),
]


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A text made from valid ones by one to eight changes."""
    data = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        data = rng.choice(CHANGES)(rng, data, seeds)[:LONGEST]
    return data


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    begin = rng.randrange(len(data) + 1)
    return begin, min(len(data), begin + rng.choice((1, 2, 5, 20, 100)))


def _insert(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(PIECES) + data[at:]


def _replace(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    begin, end = _span(rng, data)
    return data[:begin] + rng.choice(PIECES) + data[end:]


def _delete(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    begin, end = _span(rng, data)
    return data[:begin] + data[end:]


def _flip(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _repeat(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    begin, end = _span(rng, data)
    return data[:begin] + data[begin:end] * rng.choice((2, 3, 50, 2000)) + data[end:]


def _splice(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _cut(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _nest(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    begin, end = _span(rng, data)
    opening, closing = rng.choice(
        ((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"<think>", b"</think>"), (b"- ", b""))
    )
    deep = rng.choice((1, 40, 2000, 30_000))
    return data[:begin] + opening * deep + data[begin:end] + closing * deep + data[end:]


def _value(rng: random.Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """Another value in a place of the JSON that the text is; the text itself where it is none."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return _replace(rng, data, seeds)
    holders: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in list(children):
            holders.append((node, key))
            walk(child)

    try:
        walk(tree)
        if not holders:
            return data
        node, key = rng.choice(holders)
        change = rng.randrange(3)
        if change == 0:
            del node[key]
        elif change == 1:
            node[key] = rng.choice(
                [None, True, -1, 0, 10**30, 1e308, "", "x", "\ud800", [], {}, [[]], {"": None}, ["a"] * 3]
            )
        else:
            other = rng.choice(holders)
            node[key] = json.loads(json.dumps(other[0][other[1]]))
        return json.dumps(tree).encode()
    except (ValueError, RecursionError, LookupError):
        return data


CHANGES: Sequence[Callable[[random.Random, bytes, Sequence[bytes]], bytes]] = (
    *(_insert, _replace, _delete, _flip, _repeat, _splice, _cut, _nest),
    *(_value, _value, _value),
)
