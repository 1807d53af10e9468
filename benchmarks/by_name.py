"""Runs the six methods by their names alone (python train.py method=NAME), one after the other, as a user would.

python benchmarks/by_name.py --json outputs/benchmarks/by_name.json
python benchmarks/by_name.py --methods sft trace

Every run begins in an empty folder and shares no cache with the other runs. The output shows held-out success of the
base policy and after training, the change with its 95 % interval (docs/evaluation.md), the number of samples in
updates, and the seconds from the command to its end. The last line is one JSON object. The exit status is 1 if a method
has learned nothing (its interval is not above zero) or took more than ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common import finish, program

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("sft", "grpo", "pivotrl", "awpo", "trace", "selective")
MINUTES = 10.0  # most minutes, on two cores


def parser() -> argparse.ArgumentParser:
    parser = program(__doc__)
    add = parser.add_argument
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="names of the methods (default: all six)")
    add("--seed", type=int, default=0, help="seed of the runs (default 0)")
    return parser


def main() -> int:
    args = parser().parse_args()
    console = Console(stderr=True)
    found = {}
    for method in args.methods:
        console.print(f"python train.py method={method} seed={args.seed}", highlight=False)
        with tempfile.TemporaryDirectory() as folder:
            found[method] = trained(method, args.seed, Path(folder))
        show(found)
        learned = all(row["delta_ci95"][0] > 0 for row in found.values())
        slowest = max(row["seconds"] for row in found.values()) / 60
        ratios = {"learned": learned, "slowest_minutes": round(slowest, 1)}
        finish(
            "by_name", args, ratios, {"methods": found, "absent": {}}
        )  # written after each run, so that an interrupted benchmark keeps its results
    return 0 if learned and slowest <= MINUTES else 1


def trained(method: str, seed: int, folder: Path) -> dict[str, Any]:
    out = folder / "run"
    command = [
        *(sys.executable, str(ROOT / "train.py"), f"method={method}", f"seed={seed}"),
        *(f"paths.out={out}", f"paths.cache={folder / 'cache'}"),
    ]
    began, load, spent = time.monotonic(), os.getloadavg()[0], os.times()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}")
    seconds, ended = time.monotonic() - began, os.times()
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = ("base", "after", "delta", "delta_ci95", "tasks")
    return {
        **{name: result["in_domain"][name] for name in kept},
        "samples": sum(row["train/samples"] for row in rows if row["phase"] == "train"),
        "gate": result.get("gate"),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(
            ended.children_user + ended.children_system - spent.children_user - spent.children_system, 1
        ),
        "load_before": round(load, 2),
        "phases": result["seconds"],
        "config_hash": result["config_hash"],
    }


def show(found: dict[str, dict[str, Any]]) -> None:
    table = Table("method", "base, %", "after, %", "change", "samples", "seconds", "CPU seconds")
    for method, row in found.items():
        low, high = row["delta_ci95"]
        change = f"{row['delta']:+.1f} [{low:+.1f}, {high:+.1f}]"
        sides = [f"{row[side]:.1f}" for side in ("base", "after")]
        table.add_row(
            method, *sides, change, f"{row['samples']:,.0f}", f"{row['seconds']:,.0f}", f"{row['cpu_seconds']:,.0f}"
        )
    Console(stderr=True).print(table)


if __name__ == "__main__":
    sys.exit(main())
