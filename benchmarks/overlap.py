"""Measures how much time a run saves if the next iteration is collected during the update (rollout.staleness=1).

python benchmarks/overlap.py
python benchmarks/overlap.py --method grpo --epochs 12 --rounds 5 --overrides engine.lanes=2

Runs with rollout.staleness=1 and 0 alternate. Seconds per iteration are measured between the first and the last line of
the metrics, so that neither the start nor the evaluations count. By default the engine has one lane: one core runs
rollouts while another core trains. The last line is one JSON object. Its ratio is the median over rounds of the time at
staleness 0 (fresh) divided by the time at staleness 1 (ahead).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT, finish, positive, program

WAYS = {"fresh": 0, "ahead": 1}


def main() -> None:
    parser = program(__doc__)
    add = parser.add_argument
    add("--rounds", type=positive, default=3, help="number of measured rounds; the result is their median (default 3)")
    add("--seed", type=int, default=0, help="seed of the runs (default 0)")
    add("--method", default="pivotrl", help="method to train (default pivotrl)")
    add("--epochs", type=positive, default=8, help="number of iterations of a run (default 8)")
    add("--overrides", nargs="*", default=["engine.lanes=1"], help="settings of both runs (default engine.lanes=1)")
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for n in range(args.rounds):
            # the order alternates, so that a drift of the machine's speed favours neither
            for way in WAYS if n % 2 == 0 else reversed(WAYS):
                found[way].append(seconds(args, Path(folder), way, n))
                print(f"round {n}, {way}: {found[way][-1]['iteration']:.2f} s an iteration", file=sys.stderr)
    pairs = zip(found["fresh"], found["ahead"], strict=True)
    ratios = [round(fresh["iteration"] / ahead["iteration"], 3) for fresh, ahead in pairs]
    parts = {
        way: {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}
        for way, rounds in found.items()
    }
    finish("overlap", args, {"x_fresh": statistics.median(ratios)}, {"rounds": ratios, "seconds": parts})


def seconds(args: argparse.Namespace, folder: Path, way: str, n: int) -> dict[str, float]:
    """Returns the seconds per iteration of one run: total, collection, waiting for the collection, and update."""
    out = folder / f"{way}{n}"
    command = [
        *(sys.executable, str(ROOT / "train.py"), f"method={args.method}", f"seed={args.seed}"),
        *(f"rollout.staleness={WAYS[way]}", f"iterations={args.epochs}"),
        *(f"paths.out={out}", f"paths.cache={folder / 'cache'}"),
        *("eval.tasks=2", "eval.attempts=0", "eval.items=1", "logger.wandb=null", *args.overrides),
    ]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    first, *later = [row for row in rows if row["phase"] == "train"]
    parts = {
        name: statistics.fmean(row[f"seconds/{name}"] for row in later) for name in ("rollout", "waited", "update")
    }
    return {"iteration": (later[-1]["time"] - first["time"]) / len(later), **parts}


if __name__ == "__main__":
    main()
