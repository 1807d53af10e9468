"""Requests the reasoning behind every assistant turn of a trajectory file from any OpenAI-compatible endpoint.

    python scripts/reference_rationales.py demos.jsonl --url http://127.0.0.1:8000/v1 --model qwen3-32b

Writes one JSON object per turn: {"trajectory", "turn", "rationale", "model"}. With --into the trajectories are written
as well; each assistant message then contains its rationale under reasoning_content, the key that a run reads. Answers
are saved in the cache as they arrive: after an interruption, or if rationales are missing, the same command requests
only the missing rationales. The API key, if one is needed, is read from the environment variable named by
--key-variable.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from rich.progress import Progress

from turnwise.console import Terminal, number
from turnwise.data.trajectories import read_trajectories
from turnwise.errors import InputError
from turnwise.files import atomic_write, refuse_same
from turnwise.judges.cache import Cache
from turnwise.judges.client import ChatClient
from turnwise.judges.rationales import DemonstratedTurn, Written, steps, write_rationales, write_reasoned
from turnwise.programs import options, program


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done; 1 rationales are missing (run it again); 2 a file or option cannot be used."""
    args = parser().parse_args(arguments)
    out = args.out or args.trajectories.with_suffix(".rationales.jsonl")
    console = Terminal(stderr=True)
    check(args, out)
    read = read_trajectories(args.trajectories)
    for problem in read.problems:
        console.print(f"left out: {problem}")
    client = client_of(args)
    wanted = list(steps(read.trajectories))
    cache = Cache(args.cache)
    written = asyncio.run(ask(client, args, wanted, cache, console))
    cache.close()
    write(out, wanted, written, args.model)
    if args.into:
        write_reasoned(args.into, read.trajectories, written)
    report = client.tally.report()
    tokens = f"{report['prompt_tokens']:.0f} prompt and {report['completion_tokens']:.0f} completion tokens"
    spent = f"{tokens}, cost {client.cost:.4g}"
    print(f"{out}: {len(written.rationales)} of {len(wanted)} rationales, {written.cached} from the cache; {spent}")
    if written.missing:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(written.missing.items()))
        print(f"missing rationales: {reasons}; run the same command again to request them", file=sys.stderr)
    return 1 if written.missing else 0


def check(args: argparse.Namespace, out: Path) -> None:
    """Checks names and files before a request is sent.

    Raises:
        InputError: a file would be overwritten although it is also read or written, or a name is missing.
    """
    for place in filter(None, (out, args.into)):
        refuse_same(place, [args.trajectories])
    if args.into == out:
        raise InputError(f"--into {out}: the rationales are written to this file (--out); give another file")
    if args.into and args.into.suffix not in (".jsonl", ".parquet"):
        raise InputError(f"--into {args.into}: name a file that ends in .jsonl or .parquet")
    if not args.model.strip() or not args.model.isprintable():
        raise InputError(f"--model {args.model!r}: the name of a model is needed")
    if not args.key_variable.isidentifier():
        raise InputError("--key-variable: the name of an environment variable is needed, not the key itself")


def client_of(args: argparse.Namespace) -> ChatClient:
    """Returns the client that the options describe. Raises InputError if an option is out of range."""
    try:
        return ChatClient(
            args.url,
            key_variable=args.key_variable,
            concurrency=args.concurrency,
            time_limit=args.time_limit,
            attempt_limit=args.time_limit,
            price_in=args.price_in,
            price_out=args.price_out,
            budget=args.budget,
        )
    except ValueError as error:
        raise InputError(f"--{str(error).replace('_', '-', 1)}") from error


async def ask(
    client: ChatClient, args: argparse.Namespace, wanted: list[DemonstratedTurn], cache: Cache, console: Terminal
) -> Written:
    """Requests all rationales. On a terminal, a progress bar is shown."""
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("rationales", total=len(wanted))
        try:
            return await write_rationales(
                client,
                args.model,
                wanted,
                cache,
                args.temperature,
                args.max_tokens,
                advance=lambda: progress.advance(bar),
            )
        finally:
            await client.close()


def write(path: Path, wanted: list[DemonstratedTurn], written: Written, model: str) -> None:
    """Writes the rationales in the order of their turns, all of them or none."""
    with atomic_write(path) as part, part.open("w", encoding="utf-8") as file:
        for step in wanted:
            text = written.rationales.get((step.trajectory, step.turn))
            if text is not None:
                row = {"trajectory": step.trajectory, "turn": step.turn, "rationale": text, "model": model}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add("trajectories", type=Path, help="file of trajectories: JSON lines or Parquet (docs/data.md)")
    add("--url", required=True, help="base address of the API, such as http://127.0.0.1:8000/v1")
    add("--model", required=True, help="name of the model at the endpoint")
    add("--out", type=Path, help="file of rationales to write (default: beside the trajectories, .rationales.jsonl)")
    add("--into", type=Path, help="write the trajectories with their rationales to this file (.jsonl or .parquet)")
    add(
        "--cache",
        type=Path,
        default=Path("outputs/cache/rationales.sqlite"),
        help="file in which answers are saved as they arrive",
    )
    add("--key-variable", default="TURNWISE_JUDGE_KEY", help="environment variable that holds the API key")
    add("--concurrency", type=int, default=16, help="maximum number of questions in progress at the same time")
    add(
        "--time-limit",
        type=number(1e-3, 1e6),
        default=300.0,
        help="seconds for one question, including all its attempts",
    )
    add("--temperature", type=number(0, 100), default=0.0)
    add("--max-tokens", type=number(1, 1e6, whole=True), default=1024)
    add("--price-in", type=float, default=0.0, help="price of a million tokens, for the report and --budget")
    add("--price-out", type=float, default=0.0)
    add("--budget", type=float, help="maximum cost; after it is reached, no more questions are sent")
    return parser


if __name__ == "__main__":
    sys.exit(main())
