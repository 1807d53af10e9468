"""Runs some iterations of one row of a paper at ``scale=paper``, with random weights, on the devices of this machine.

python benchmarks/gpu_rows.py pivotrl --folder outputs/gpu/paper_pivotrl
python benchmarks/gpu_rows.py trace --device cpu --iterations 2 --folder outputs/gpu-dry/paper_trace

Data and servers are synthetic (paper_rows.py). The policy has the row's model family with random weights: the sizes of
Qwen3-0.6B on CUDA, tiny sizes on a CPU. All changes of the row are listed under `changed` in the last line. The
tree engine samples. A run that is not finished at --limit is stopped by an interrupt signal; the same command resumes it.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from common import machine, positive
from devices import free
from paper_models import model_folder
from paper_rows import PAPERS, SHRUNK, Row
from turnwise.config.schema import compose_config
from turnwise_study.planning import GPUS, plan

ROOT = Path(__file__).resolve().parents[1]
GRACE = 20.0  # seconds that a stopped run gets to save its state
REPLY = 32  # greatest number of tokens of a reply on CUDA; random weights seldom end a reply


def main() -> None:
    args = parser().parse_args()
    if args.paper == "awpo" and find_spec("bfcl_eval") is None:
        print(json.dumps({"benchmark": "row", "not_here": "bfcl-eval is not installed; `make bfcl` does it"}))
        return
    cuda = args.device == "cuda"
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with PAPERS[args.paper](folder, large=cuda) as row:
        model = folder / "model"
        if not (model / "config.json").exists():
            model_folder(row.family, model, large=cuda, device=args.device)
        changed = changes(args)
        place = folder / "run"
        places = [f"policy.model={model}", f"paths.out={place}", f"paths.cache={folder / 'cache'}", "name=gpu"]
        places += ["logger.wandb=null"]
        places += ["fresh=true"] if args.fresh else []
        given = row.overrides(changed)
        planned = planned_peak([*given, *places])
        free()
        with Watched(cuda) as device:
            seconds, status, said = train([*given, *places], args.limit)
    done = trained(place / "metrics.jsonl")
    if status not in (0, None) or not done:
        ended = f"ended with status {status}" if status is not None else f"was stopped at its limit of {args.limit} s"
        sys.exit(f"train.py {ended} after {len(done)} iterations: {said}")
    found = told(args, row, changed, done, seconds)
    print(json.dumps(found | {"device_bytes": device.most, "planned_bytes": planned}))


class Watched:
    """Records the memory in use on the first device twice per second: that of all processes, servers included."""

    def __init__(self, cuda: bool) -> None:
        self.most: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True) if cuda else None

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            room, whole = torch.cuda.mem_get_info(0)
            self.most = max(self.most or 0, whole - room)

    def __enter__(self) -> Watched:
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()


def planned_peak(overrides: Sequence[str]) -> int | None:
    """Returns the planned peak of the training process in bytes (``scripts/plan.py``), without servers."""
    memory = plan(compose_config(overrides, ROOT / "conf"), GPUS["h100"]).memory
    return int(memory["peak"]) if memory else None


def changes(args: argparse.Namespace) -> list[str]:
    """Returns the overrides that make a row small enough for this machine, on which no server runs."""
    # with random weights, all rewards of a group are equal, and these groups would otherwise be left out of the update
    always = [f"iterations={args.iterations}", "advantage.zero_variance=keep"]
    if args.device == "cpu":
        return [*(item for item in SHRUNK if not item.startswith("iterations")), *always]
    devices = torch.cuda.device_count()
    smaller = [
        *always,
        f"rollout.sampling.max_tokens={REPLY}",
        "eval.tasks=2",
        "eval.attempts=1",
        "eval.items=1",
        "eval.every=0",
    ]
    smaller += ["trainer.num_nodes=1", f"trainer.devices={devices}"] + (
        [] if devices > 1 else ["trainer.strategy=auto"]
    )
    return [*smaller, "engine=tree"]


def train(overrides: Sequence[str], limit: float) -> tuple[float, int | None, str]:
    """Runs train.py. Returns its seconds, its exit status (None if the limit stopped it) and its last lines."""
    began = time.monotonic()
    command = [sys.executable, str(ROOT / "train.py"), *overrides]
    process = subprocess.Popen(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    stopped = False
    try:
        _, text = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        stopped = True
        process.send_signal(signal.SIGINT)
        try:
            _, text = process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            _, text = process.communicate()
    print(text, file=sys.stderr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return time.monotonic() - began, None if stopped else process.returncode, " / ".join(lines[-3:])


def trained(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["phase"] == "train"]


def told(
    args: argparse.Namespace, row: Row, changed: Sequence[str], done: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """Returns the object of the last output line."""
    rollouts, updates = ([item.get(f"seconds/{name}", 0.0) for item in done] for name in ("rollout", "update"))
    last = done[-1]
    found = {
        "benchmark": "row",
        "paper": args.paper,
        "sweep": row.sweep,
        "row": row.name,
        "engine": "tree",
        "iterations": len(done),
        "asked": args.iterations,
        "rollout_seconds": round(statistics.median(rollouts), 3),
        "update_seconds": round(statistics.median(updates), 3),
        "tokens": last.get("rollout/tokens"),
        "stored_tokens": last.get("train/stored_tokens"),
        "mismatch_max": last.get("train/mismatch_max"),
        "halvings": last.get("train/halvings"),
        "seconds": round(seconds, 1),
        "devices": torch.cuda.device_count() if args.device == "cuda" else 0,
        "changed": [*changed, *row.smaller],
        "machine": machine(),
    }
    if len(done) < args.iterations:
        found["unfinished"] = (
            f"{len(done)} of {args.iterations} iterations within {args.limit} s; the same command goes on"
        )
    return found


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("paper", choices=list(PAPERS))
    add("--device", choices=["cpu", "cuda"], default="cuda")
    add("--iterations", type=positive, default=10)
    add(
        "--limit",
        type=positive,
        default=110,
        metavar="S",
        help="number of seconds after which the run is stopped (110)",
    )
    add("--fresh", action="store_true", help="move an earlier run in the folder aside and start a new run")
    add("--folder", type=Path, required=True, help="folder of the data, the weights and the run")
    return parser


if __name__ == "__main__":
    main()
