"""Measures how the lead over peers changes with the size of the model: rollouts, updates and profiling on a CPU.

python benchmarks/growth.py
python benchmarks/growth.py --sizes 2m 20m --dtypes float32 --vllm-python .venv-vllm/bin/python
python benchmarks/growth.py --work small --sizes dry --dtypes float32      a minute, to try it

The sizes are 2 million parameters (the shipped policy), 20 and 120 million (random weights). All sizes get the same
work. Each measurement is a process of its own with a time limit; a finished measurement is repeated only with --again.
The last line is one JSON object with one entry for each size and number format: the speed of Turnwise divided by that
of each peer, and floor_ratio, Turnwise's time divided by the least time that the machine's bandwidth and arithmetic
allow. Exit status: 0 if all were measured, 1 if a measurement failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common import finish, program, show
from devices import cpu_model
from gpu import finished, run
from gpu_parts import BENCHMARKS, Outcome, Part
from result_tables import ratio_or_dash
from shapes import GROWTH

SIZES = {"2m": "tiny", **{name: name for name in GROWTH}, "dry": "qwen3-dry"}  # name of a size -> its shape
# The work is the same for all sizes, and small enough for the slowest peer of the largest model.
WORK: Mapping[str, Mapping[str, str]] = {
    "whole": {
        "rollout": "--tasks 2 --group 8 --horizon 6 --max-length 2048 --rounds 3",
        "update": "--state 256 --actions 16 --action 16 --turns 6 --tree-state 128 --tree-action 8 --tree-observation 16 "
        "--rounds 3 --tree-rounds 1",
        "profiling": "--trajectories 4 --turns 8 --k 8 --rounds 3",
    },
    "small": {
        "rollout": "--tasks 1 --group 2 --horizon 2 --max-tokens 4 --max-length 1024 --rounds 1 --continuous-rows 2",
        "update": "--state 16 --actions 3 --action 4 --roots 2 --branches 1 --turns 3 --tree-state 8 --tree-action 3 "
        "--tree-observation 3 --rounds 1 --tree-rounds 1",
        "profiling": "--trajectories 2 --turns 3 --k 2 --max-tokens 4 --rounds 1",
    },
}
PEERS = {"rollout": "generate continuous", "update": "padded", "profiling": "per_turn"}
RATIOS = {
    "rollout": ("x_generate", "x_continuous", "x_vllm_cpu", "floor_ratio"),
    "update": ("x_padded",),
    "profiling": ("x_per_turn",),
}
OUT = BENCHMARKS.parent / "outputs" / "growth"


def main() -> int:
    args = parser().parse_args()
    machine = {"cpu": cpu_model()}
    found: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for name, part in parts(args):
        place = args.out / part.name
        outcome = None if args.again else finished(place, part, machine)
        if outcome is None:
            print(f"{part.name}: {part.says} (at most {part.limit:.0f} s)", file=sys.stderr, flush=True)
            outcome = run(part, place, machine)
        if outcome.status != "done":
            failed[part.name] = f"{outcome.status}: {outcome.reason}"
        found.setdefault(name, {}).update(measured(part.name.rpartition("-")[2], outcome))
    table(found, failed)
    finish("model_size", args, found, {"absent": failed})
    return 1 if failed else 0


def parts(args: argparse.Namespace) -> Iterator[tuple[str, Part]]:
    """Yields each measurement with its size and format, such as ``20m/float32``, and its command."""
    for size in args.sizes:
        for dtype in args.dtypes:
            for kind, work in WORK[args.work].items():
                peers = PEERS[kind] + (" vllm" if kind == "rollout" and args.vllm_python else "")
                options = f"--shape {SIZES[size]} --dtype {dtype} {work} --keep-going --peers {peers}".split()
                options += ["--threads", str(args.threads)] if args.threads else []
                if "vllm" in peers:
                    options += ["--vllm-python", str(args.vllm_python)]
                command = (sys.executable, str(BENCHMARKS / f"{kind}.py"), *options)
                yield (
                    f"{size}/{dtype}",
                    Part(f"{size}-{dtype}-{kind}", f"{kind} at {size} in {dtype}", command, args.limit),
                )


def measured(kind: str, outcome: Outcome) -> dict[str, Any]:
    """Returns the ratios of one measurement, and Turnwise's rate. All ratios are None if the measurement failed."""
    ours = outcome.result.get("contenders", {}).get("turnwise", {}).get("rate")
    ratios = {key: outcome.result.get(key) for key in RATIOS[kind]}
    floor = {"binds": outcome.result["floor"]["binds"]} if "floor" in outcome.result else {}
    return {**ratios, f"{kind}_rate": ours, **floor}


def table(found: Mapping[str, Mapping[str, Any]], failed: Mapping[str, str]) -> None:
    keys = [key for several in RATIOS.values() for key in several]
    rows = [[name, *(ratio_or_dash(row.get(key)) for key in keys)] for name, row in found.items()]
    notes = [f"{name}: {reason}" for name, reason in failed.items()]
    header = ["", *(key.removeprefix("x_").removesuffix("_ratio").removesuffix("_cpu") for key in keys)]
    show(
        "How many times as fast as each peer, by size of the model; floor: our time over the bound", header, rows, notes
    )


def parser() -> argparse.ArgumentParser:
    parser = program(__doc__)
    add = parser.add_argument
    add("--sizes", nargs="+", choices=[*SIZES], default=["2m", "20m", "120m"])
    add("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    add("--work", choices=[*WORK], default="whole", help="small: little work, to try the program")
    add("--threads", type=int, default=None, help="threads of every contender (default: the choice of torch)")
    add("--limit", type=float, default=900.0, help="time limit of one measurement in seconds (900)")
    add("--vllm-python", type=Path, default=None, metavar="FILE", help="Python interpreter that has vllm-cpu")
    add("--out", type=Path, default=OUT, metavar="FOLDER", help="folder of the measurements (outputs/growth)")
    add("--again", action="store_true", help="also repeat measurements that were finished")
    return parser


if __name__ == "__main__":
    sys.exit(main())
