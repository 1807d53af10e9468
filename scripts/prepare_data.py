"""Imports trajectories of other programs into the format of docs/data.md, and reports what could not be used.

python scripts/prepare_data.py toolace.json --out data/toolace.jsonl
python scripts/prepare_data.py part-1.parquet part-2.parquet --out data/all.jsonl
python scripts/prepare_data.py xlam.json --out data/masked.jsonl --mask 0

The files hold JSON lines, a JSON array, or Parquet, with the keys of OpenAI (messages, tools, tool_calls) or ShareGPT
(conversations of from and value). Calls in text become tool_calls: <tool_call> of Hermes and Qwen, [f(a=1)] of ToolACE,
Llama's JSON. Tools are taken from the record or from the system prompt. No text is executed. With --mask, the tools and
their parameters get random names, as in Hammer (arXiv:2410.04587), so that a policy has to read their descriptions. The
last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from turnwise.console import Terminal, sized
from turnwise.data.other_formats import converted
from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.trajectories import BadTrajectory, read_trajectories, write_trajectories
from turnwise.errors import InputError
from turnwise.files import refuse_same
from turnwise.programs import options, program
from turnwise.types import Message, Trajectory

SHOWN = 20  # greatest number of places that are listed for one reason; all places are counted


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done; 2 a file or option cannot be used, or no record can be used."""
    args = parser().parse_args(arguments)
    if args.out.suffix != ".jsonl":
        raise InputError(f"--out {args.out}: name a file that ends in .jsonl")
    refuse_same(args.out, args.files)
    with Progress(console=Terminal(stderr=True), transient=True) as bar:
        task = bar.add_task("import", total=sum(path.stat().st_size for path in args.files if path.is_file()))
        read = read_trajectories(args.files, args.strict, parse=converted, on_bytes=partial(bar.advance, task))
    masks = (masked(trajectory, args.mask) for trajectory in read.trajectories)
    write_trajectories(args.out, read.trajectories if args.mask is None else masks)
    reasons = by_reason(read.problems)
    out, written = sized(160), len(read.trajectories)
    if reasons:
        out.print(table(reasons))
    out.print(f"{args.out}: {written} of {written + len(read.problems)} trajectories")
    counted = {
        name: {"count": len(problems), "places": [problem.source for problem in problems[:SHOWN]]}
        for name, problems in reasons.items()
    }
    result = {"read": written + len(read.problems), "written": written, "unusable": len(read.problems)}
    print(json.dumps(result | {"reasons": counted, "out": str(args.out)}))
    return 0


def masked(trajectory: Trajectory, seed: int) -> Trajectory:
    """Returns the trajectory with random names of tools and of their parameters, in definitions and calls. Descriptions
    and all other texts stay. The names depend on the seed and the trajectory's id.
    """
    rng = random.Random(f"mask {seed} {trajectory.id}")
    others: dict[str, tuple[str, dict[str, str]]] = {}
    tools = []
    for tool in trajectory.tools:
        function = dict(function_of(tool))
        schema = dict(function.get("parameters") or {})
        keys = {key: _word(rng) for key in schema.get("properties") or {}}
        new = _word(rng)
        others[function["name"]] = new, keys
        schema |= {"properties": {keys[key]: about for key, about in (schema.get("properties") or {}).items()}}
        schema |= {"required": [keys.get(key, key) for key in schema.get("required") or ()]}
        tools.append({"type": "function", "function": {**function, "name": new, "parameters": schema}})

    def message_of(message: Message) -> Message:
        calls = []
        for call in message.get("tool_calls") or ():
            name, keys = others[function_of(call)["name"]]
            arguments = {keys.get(key, key): value for key, value in arguments_of(call).items()}
            calls.append({**call, "function": {"name": name, "arguments": arguments}})
        named = {"name": others[message["name"]][0]} if message.get("name") in others else {}
        return {**message, **named, **({"tool_calls": calls} if calls else {})}

    return replace(trajectory, tools=tuple(tools), messages=tuple(map(message_of, trajectory.messages)))


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=8))


def by_reason(problems: Sequence[BadTrajectory]) -> dict[str, list[BadTrajectory]]:
    """Returns the problems by reason, the most frequent reason first."""
    found: dict[str, list[BadTrajectory]] = {}
    for problem in problems:
        found.setdefault(problem.reason, []).append(problem)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def table(reasons: dict[str, list[BadTrajectory]]) -> Table:
    """Returns a table of what could not be used: how often, where, and the first case with its remedy."""
    shown = Table(title="Not used", title_justify="left")
    for name in ("reason", "count", "where", "first case and its remedy"):
        shown.add_column(name, overflow="fold")
    for reason, problems in reasons.items():
        lines = [problem.source.rpartition(":")[2] for problem in problems[:8]]
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        file = Path(problems[0].source.rpartition(":")[0]).name
        first = problems[0].what
        cells = (reason, str(len(problems)), f"{file}:{', '.join(lines)}{more}", first[:300])
        shown.add_row(*cells)
    return shown


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add: Any = parser.add_argument
    add("files", nargs="+", type=Path, help=".jsonl, .ndjson, .json (lines or an array) or .parquet")
    add("--out", type=Path, required=True, help="the .jsonl file to write; it is written completely or not at all")
    add("--mask", type=int, metavar="SEED", help="give tools and parameters random names")
    add("--strict", action="store_true", help="write nothing if one trajectory cannot be used")
    return parser


if __name__ == "__main__":
    sys.exit(main())
