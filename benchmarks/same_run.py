"""Compares one run with each of two engines, the tree engine and vLLM, to check that the runs learn equally well.

python benchmarks/same_run.py --url http://127.0.0.1:8000
python benchmarks/same_run.py --tasks 24 --overrides iterations=2

A vLLM server for the shipped policy must run at --url (docs/engines.md).
Both runs have the same seed, hence the same tasks and demonstrations; the random draws of the engines differ. Held-out
success after training is compared task by task with the paired bootstrap of docs/evaluation.md. The last line is one
JSON object. Its key `apart` is vLLM's success minus that of the tree engine in points. The object also holds the 95 %
interval of this difference, and whether the interval contains 0. If it does not, the exit status is 1.
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

from common import finish, positive, program
from turnwise.training.evaluate import comparison, load_evaluation

ROOT = Path(__file__).resolve().parents[1]
ENGINES = {"tree": ["engine.lanes=1"], "vllm": ["engine=vllm"]}
SMALL = [
    *("method=pivotrl", "data.trajectories=30", "states.k=4", "states.keep=mixed", "rollout.states=8"),
    *("rollout.trajectories=null", "allocator.group_size=8", "iterations=4"),
]


def parser() -> argparse.ArgumentParser:
    parser = program(__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=0, help="seed of the runs (default 0)")
    add(
        "--tasks",
        type=positive,
        default=48,
        help="number of held-out tasks of each split, with one attempt each (default 48)",
    )
    add("--url", default="http://127.0.0.1:8000", help="address of the vLLM server (default http://127.0.0.1:8000)")
    add("--overrides", nargs="*", default=[], help="additional settings of both runs")
    return parser


def main() -> int:
    args = parser().parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for engine in ENGINES:
            console.print(f"training with engine={engine}", highlight=False)
            found[engine] = trained(args, Path(folder), engine)
        tree, vllm = (load_evaluation(Path(folder) / engine / "evaluation" / "after.jsonl") for engine in ENGINES)
    apart = comparison(tree, vllm, "sampled")
    show(found)
    low, high = apart["delta_ci95"]
    ratios = {"apart": apart["delta"], "apart_ci95": apart["delta_ci95"], "within": low <= 0 <= high}
    finish("same_run", args, ratios, {"engines": found, "tasks": apart["tasks"], "absent": {}})
    return 0 if ratios["within"] else 1


def trained(args: argparse.Namespace, folder: Path, engine: str) -> dict[str, Any]:
    out = folder / engine
    command = [
        *(sys.executable, str(ROOT / "train.py"), *SMALL, *ENGINES[engine], f"seed={args.seed}", f"paths.out={out}"),
        *(f"paths.cache={folder / 'cache'}", f"eval.tasks={args.tasks}", "eval.attempts=1", "eval.items=1"),
        *("logger.wandb=null", *args.overrides),
        *([f"engine.url={args.url}"] if engine == "vllm" else []),
    ]
    began = time.monotonic()
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}")
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    mismatch = [row["train/mismatch_max"] for row in rows if row.get("train/mismatch_max") is not None]
    kept = ("base", "after", "delta", "delta_ci95", "tasks")
    return {
        **{name: result["in_domain"][name] for name in kept},
        "tokens": result["rollout_tokens"],
        "mismatch_max": max(mismatch),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


def show(found: dict[str, dict[str, Any]]) -> None:
    table = Table("engine", "base, %", "after, %", "change", "tokens drawn", "log-probs apart", "minutes")
    for engine, row in found.items():
        low, high = row["delta_ci95"]
        change = f"{row['delta']:+.1f} [{low:+.1f}, {high:+.1f}]"
        shown = [f"{row[side]:.1f}" for side in ("base", "after")]
        table.add_row(
            engine, *shown, change, f"{row['tokens']:,}", f"{row['mismatch_max']:.1e}", f"{row['minutes']:.1f}"
        )
    Console(stderr=True).print(table)


if __name__ == "__main__":
    sys.exit(main())
