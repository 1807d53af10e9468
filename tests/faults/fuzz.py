"""Throw broken text at every parser of outside text (parsers.py): each takes it or refuses it in its one documented way.

python tests/faults/fuzz.py --minutes 10 --seed 1

Texts are drawn from valid ones by cutting, repeating, splicing, nesting and by pieces that parsers have trouble with. A case that
takes more than LIMIT seconds of processor time hangs. What was found lies in --out, one JSON object a line. The last line
printed is one JSON object: `cases`, `crashes`, `hangs`, `minutes` and the cases of each parser. The exit status is 1 where
something was found.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]

from parsers import Target, targets  # noqa: E402

LIMIT = 5.0  # s of processor time a case
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


class Hang(BaseException):
    """A case took too long."""


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


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises Hang in the block once it has computed for so long."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run(minutes: float, seed: int, found: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Fuzz all parsers in turn for so long; ``found`` is told of each crash and hang. Of its valid texts each must take one."""
    rng = random.Random(seed)
    cases, counts = Counter[str](), Counter[str]()
    every = targets()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for target in every:
            if not any(_taken(target, text.encode(), folder) for text in target.seeds):
                counts["crash"] += 1
                found(
                    {
                        "parser": target.name,
                        "seed": seed,
                        "kind": "crash",
                        "error": "it takes none of its valid texts",
                        "data": "",
                    }
                )
        began = time.monotonic()
        while time.monotonic() - began < 60 * minutes:
            for target in every:
                data = mutated(rng, [seed.encode() for seed in target.seeds])
                verdict = tried(target, data, folder)
                cases[target.name] += 1
                if verdict is not None:
                    counts[verdict["kind"]] += 1
                    found({"parser": target.name, "seed": seed, **verdict, "data": base64.b64encode(data).decode()})
    return {
        "seed": seed,
        "cases": cases.total(),
        "crashes": counts["crash"],
        "hangs": counts["hang"],
        "minutes": round((time.monotonic() - began) / 60, 2),
        "parsers": dict(cases),
    }


def _taken(target: Target, data: bytes, folder: Path) -> bool:
    try:
        target.parse(data, folder)
    except target.refuses:
        return False
    return True


def tried(target: Target, data: bytes, folder: Path) -> dict[str, str] | None:
    """What went wrong with one case; None where it was taken or refused."""
    try:
        with limited(LIMIT):
            target.parse(data, folder)
    except Hang:
        return {"kind": "hang", "error": traceback.format_exc(limit=-4)}
    except target.refuses:
        return None
    except Exception:
        return {"kind": "crash", "error": traceback.format_exc(limit=-4)}
    return None


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", default="outputs/faults/fuzz.jsonl", help="what was found (default outputs/faults/fuzz.jsonl)"
    )
    args = parser.parse_args(arguments)
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)

    def found(case: dict[str, Any]) -> None:
        with out.open("a") as stream:
            stream.write(json.dumps(case) + "\n")
        print(f"{case['parser']}: {case['kind']}: {case['error'].splitlines()[-1][:200]}", file=sys.stderr, flush=True)

    summary = run(args.minutes, args.seed, found)
    print(json.dumps(summary))
    return int(bool(summary["crashes"] or summary["hangs"]))


if __name__ == "__main__":
    sys.exit(main())
