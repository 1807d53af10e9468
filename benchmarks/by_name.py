"""Runs the six methods by their names alone (python train.py method=NAME), one after the other, as a user would.

python benchmarks/by_name.py --json outputs/benchmarks/by_name.json
python benchmarks/by_name.py --methods sft trace

Every run begins in an empty folder and shares no cache with the other runs. The output shows held-out success of the
base policy and after training, the change with its 95 % interval (docs/evaluation.md), the number of samples in
updates, and the seconds from the command to its end. The last line is one JSON object. Without --overrides, the exit status
is 1 if a method has learned nothing (its interval is not above zero) or took more than ten minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import ROOT, finish, program, show

METHODS = ("sft", "grpo", "pivotrl", "awpo", "trace", "selective")
MINUTES = 10.0  # most minutes, on two cores


def main() -> int:
    parser = program(__doc__)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="(default: all six)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs (default 0)")
    parser.add_argument("--overrides", nargs="*", default=[], help="settings of all runs, such as trainer=gpu")
    args = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    learned, slowest = True, 0.0
    for method in args.methods:
        print(f"python train.py method={method} seed={args.seed}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            found[method] = trained(method, args.seed, Path(folder), args.overrides)
        learned = all(row["delta_ci95"][0] > 0 for row in found.values())
        slowest = max(row["seconds"] for row in found.values()) / 60
        ratios = {"learned": learned, "slowest_minutes": round(slowest, 1)}
        keys = ("base", "after", "delta", "delta_ci95", "samples", "seconds", "cpu_seconds")
        show("By name", ["method", *keys], [[name, *(row[key] for key in keys)] for name, row in found.items()])
        finish("by_name", args, ratios, {"methods": found})  # after each run, for a benchmark that is interrupted
    return 0 if args.overrides or (learned and slowest <= MINUTES) else 1


def trained(method: str, seed: int, folder: Path, overrides: list[str]) -> dict[str, Any]:
    out = folder / "run"
    command = [sys.executable, str(ROOT / "train.py"), f"method={method}", f"seed={seed}"]
    command += [f"paths.out={out}", f"paths.cache={folder / 'cache'}", *overrides]
    began, load, spent = time.monotonic(), os.getloadavg()[0], os.times()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}")
    seconds, ended = time.monotonic() - began, os.times()
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    cpu = ended.children_user + ended.children_system - spent.children_user - spent.children_system
    return {
        **{name: result["in_domain"][name] for name in ("base", "after", "delta", "delta_ci95", "tasks")},
        "samples": sum(row["train/samples"] for row in rows if row["phase"] == "train"),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "load_before": round(load, 2),
        "phases": result["seconds"],
        "config_hash": result["config_hash"],
    }


if __name__ == "__main__":
    sys.exit(main())
