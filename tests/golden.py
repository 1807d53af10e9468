"""Golden runs: twelve tiny runs whose metrics and trained weights are compared with those of an earlier commit.

    python tests/golden.py --check            # every value as recorded, within the tolerance between processors
    python tests/golden.py --check --exact    # bit for bit: for a change that must not change a number, on one machine
    python tests/golden.py --write            # record anew; the commit message says why
    python tests/golden.py --check sft grpo   # only these runs

``golden.json`` holds, for each run, a hash of each metric's values over the whole run together with its last value, and
a hash of the trained weights together with their length and their projection on a fixed direction. If a hash differs, as
it may on a processor that rounds otherwise, the numbers beside it decide. Clocks are left out. A run in which one decision
turns on the processor has a second record, ``name/processor``; a run must be equal to one of its records. ``default`` is
PyTorch's instruction set of this name (ATEN_CPU_CAPABILITY).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_suffix(".json")
# metrics that two starts of one run do not share; `engine/` is counted by each start for itself
CLOCKS = ("time", "seconds/", "cpu/", "judge/wait_seconds", "rollout/tokens_per_s", "predictor/share", "engine/")
# Between processors: sums of float32 differ in the seventh digit, and Adam divides small gradients by their own size.
RELATIVE, ABSOLUTE = 2e-3, 2e-3

SMALL = [
    "iterations=2",
    "data.trajectories=8",
    "rollout.states=6",
    "rollout.trajectories=null",
    "eval.tasks=4",
    "eval.attempts=1",
    "eval.items=2",
    "eval.every=0",
    "logger.wandb=null",
    "seed=3",
]
GROUP = "allocator.group_size=4"
RUNS: dict[str, list[str]] = {
    "sft": ["method=sft"],
    "grpo": ["method=grpo", GROUP, "rollout.sampling.temperature=0.7", "loss.kl_beta=0.05"],
    "pivotrl": ["method=pivotrl", GROUP, "rollout.sampling.temperature=0.5"],
    "awpo": ["method=awpo", GROUP, "env=bfcl", "base=tiny_tools"],  # a judge
    "trace": ["method=trace", "allocator.budget=16"],  # branches where a predictor says so, in search
    "selective": [
        "method=selective",
        GROUP,
        "rollout.sampling.temperature=0.3",
        "gate.threshold=0.6",
        "env.horizon=14",
    ],
    "two_processes": ["method=pivotrl", GROUP, "trainer.devices=2", "trainer.strategy=ddp"],
    "two_steps": ["method=grpo", GROUP, "env=apibank", "advantage=turn_credit", "update.steps=2", "loss.ratio=action"],
    "staleness": ["method=pivotrl", GROUP, "states.keep=mixed", "rollout.staleness=1", "iterations=4"],
    "refill": ["method=dapo", GROUP, "rollout.sampling.temperature=0.4", "loss=corrected", "update.steps=2"],
    "gated_tree": ["method=trace", "env=household", "allocator.budget=16", "gate=predicted", "gate.threshold=0.7"],
    "frozen": ["method=grpo", GROUP, "env=mixture", "rollout.frozen=8", "advantage=gigpo", "iterations=3"],
}


def play(name: str, folder: Path) -> dict[str, Any]:
    """Executes one run in ``folder`` and returns its record.

    Raises:
        RuntimeError: the run has not ended well.
    """
    out = folder / name
    places = [f"name=golden/{name}", f"paths.out={out}", f"paths.cache={folder / 'cache' / name}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "train.py", *SMALL, *RUNS[name], *places]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{name}: exit status {ended.returncode}\n{ended.stdout[-2000:]}{ended.stderr[-4000:]}")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {"weights": weights(out), "metrics": metrics(rows)}


def metrics(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Metric -> [hash of its values in all rows, the last of them]."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            if key not in ("iteration", "phase") and not key.startswith(CLOCKS):
                values.setdefault(key, []).append(float(value))
    return {key: [digest(json.dumps(series).encode()), rounded(series[-1])] for key, series in sorted(values.items())}


def weights(out: Path) -> list[Any]:
    """[hash, length, projection] of the trained weights, which may be an adapter's or a whole model's."""
    import torch
    from safetensors.torch import load_file

    files = sorted([*out.glob("adapter/*.safetensors"), *out.glob("model/*.safetensors")])
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    flat = torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])
    direction = torch.cos(torch.arange(len(flat), dtype=torch.float64))
    return [digest(flat.numpy().tobytes()), rounded(float(flat.norm())), rounded(float(flat @ direction))]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:10]


def rounded(value: float) -> float:
    return float(f"{value:.6g}")


def near(one: float, other: float) -> bool:
    return (
        one == other
        or (math.isnan(one) and math.isnan(other))
        or math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    )


def differences(recorded: dict[str, Any], now: dict[str, Any], exact: bool) -> tuple[int, list[str]]:
    """How many hashes differ, and a line for each value that differs by more than is allowed."""
    before = {"weights": recorded["weights"], **recorded["metrics"]}
    after = {"weights": now["weights"], **now["metrics"]}
    lines = [f"{key}: no longer there" for key in before if key not in after]
    lines += [f"{key}: not recorded" for key in after if key not in before]
    unequal = 0
    for key in before.keys() & after.keys():
        (hash_before, *numbers_before), (hash_after, *numbers_after) = before[key], after[key]
        if hash_before == hash_after:
            continue
        unequal += 1
        if exact or not all(map(near, numbers_before, numbers_after)):
            lines.append(f"{key}: {numbers_before} became {numbers_after}")
    return unequal, sorted(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--check", action="store_true", help="compare with golden.json; exit status 1 if a value differs"
    )
    action.add_argument("--write", action="store_true", help="record in golden.json")
    parser.add_argument("--exact", action="store_true", help="allow no difference at all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"by default all: {', '.join(RUNS)}")
    arguments = parser.parse_args()
    if unknown := set(arguments.runs) - RUNS.keys():
        parser.error(f"no such run: {', '.join(sorted(unknown))}")
    names = arguments.runs or list(RUNS)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    failed, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        futures = {name: pool.submit(play, name, Path(folder)) for name in names}
        for name, future in futures.items():
            try:
                now = future.result()
            except RuntimeError as error:
                print(error, flush=True)
                failed += 1
                continue
            if arguments.write:
                record = {key: old for key, old in record.items() if key.partition("/")[0] != name} | {name: now}
                print(f"{name}: recorded", flush=True)
                continue
            known = [record[key] for key in record if key.partition("/")[0] == name]
            compared = [differences(one, now, arguments.exact) for one in known] or [(0, ["not recorded"])]
            unequal, lines = min(compared, key=lambda result: len(result[1]))
            failed += bool(lines)
            equal = f"{unequal} values differ in their last digits" if unequal else "bit for bit"
            print(f"{name}: {'DIFFERS' if lines else equal}", *lines[:20], sep="\n    ", flush=True)
    if arguments.write:
        texts = {key: json.dumps(record[key], separators=(",", ":")) for key in record if key.partition("/")[0] in RUNS}
        RECORD.write_text("{\n" + ",\n".join(f'"{name}": {text}' for name, text in texts.items()) + "\n}\n")
    print(f"{len(names) - failed} passed, {failed} failed")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
