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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]

from mutations import mutated  # noqa: E402
from parsers import Target, targets  # noqa: E402

LIMIT = 5.0  # s of processor time a case


class Hang(BaseException):
    """A case took too long."""


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
