"""Measures the time and memory of reading, planning and profiling more trajectories than fit into memory.

python benchmarks/million.py                                       10,000, 100,000 and 1,000,000 trajectories
python benchmarks/million.py --trajectories 2000 --resume 1000

The code is that of a run with `states=pivots` in `env=household`, but the policy is a stub, which returns one of four
actions at once. Each number of trajectories is measured in a process of its own, on a part of one synthetic file. With
--resume, a process is killed after half of its samples, and a second process finishes the work.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import finish, positive, prepare, program, show
from turnwise.data.trajectories import write_trajectories
from turnwise.envs.household.environment import HouseholdEnv
from turnwise.types import Task, Trajectory

SIZES = (10_000, 100_000, 1_000_000)
THINGS, PLACES = ("apple", "tomato", "potato", "lettuce"), ("fridge", "microwave", "cabinet")


def main() -> None:
    args = parser().parse_args()
    prepare(args)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="million-", dir=args.folder) as place:
        for size in args.trajectories:
            file = Path(place) / f"{size}.jsonl"
            began = time.perf_counter()
            write_trajectories(file, synthetic(size, args.turns), keys=("role", "content"))
            written = round(time.perf_counter() - began, 1)
            rows[str(size)] = {
                "write_seconds": written,
                "file_mb": round(file.stat().st_size / 2**20, 1),
                **measured(file, Path(place) / f"run-{size}", args.k),
            }
            if size == args.resume:
                rows[str(size)] |= {
                    "resume": resumed(file, Path(place) / f"killed-{size}", args.k, size * args.turns * args.k)
                }
            file.unlink()
    first, last = rows[str(args.trajectories[0])], rows[str(args.trajectories[-1])]
    more = args.trajectories[-1] - args.trajectories[0]
    ratios = {
        "us_per_trajectory": last["us_per_trajectory"],
        "peak_mb": {size: row["peak_mb"] for size, row in rows.items()},
        "bytes_per_trajectory": round((last["peak_mb"] - first["peak_mb"]) * 2**20 / more) if more else None,
    }
    header = ["trajectories", "read, s", "profile, s", "us each", "resident before", "peak", "shards"]
    table = [
        [
            f"{int(size):,}",
            f"{row['read_seconds']:.1f}",
            f"{row['profile_seconds']:.1f}",
            f"{row['us_per_trajectory']:.0f}",
            f"{row['before_mb']:.0f} MiB",
            f"+{row['peak_mb']:.0f} MiB",
            str(row["shards"]),
        ]
        for size, row in rows.items()
    ]
    show(f"Profiles of {args.turns} turns, K = {args.k}, the policy a stub", header, table, [])
    finish("million", args, ratios, {"sizes": rows, "absent": {}})


def synthetic(count: int, turns: int) -> Iterator[Trajectory]:
    """Yields demonstrations of small household tasks. The texts shown to the policy are all different."""
    environment = HouseholdEnv()
    kinds = []
    for thing in THINGS:
        for place in PLACES:
            data = {
                "receptacles": ["countertop 1", f"{place} 1", "drawer 1"],
                "objects": {f"{thing} 1": "countertop 1"},
                "goal": {"type": "pick_and_place_simple", "object": thing, "receptacle": place, "toggle": ""},
                "text": f"put some {thing} in {place}",
            }
            whole = environment.demonstrate(Task("household", f"{thing}/{place}", "train", data), "good")
            acts = [i for i, message in enumerate(whole.messages) if message["role"] == "assistant"]
            kinds.append((data, whole.messages[: acts[min(turns, len(acts)) - 1] + 1]))
    for number in range(count):
        data, messages = kinds[number % len(kinds)]
        said = tuple(
            {**message, "content": f"{message['content']} Note {number}."} if message["role"] == "user" else message
            for message in messages
        )
        yield Trajectory(f"made/{number}", said, task=Task("household", f"made/{number}", "train", data))


def measured(file: Path, folder: Path, k: int) -> dict[str, Any]:
    """Reads and profiles ``file`` in a new process, and returns the results that the process prints."""
    done = subprocess.run(command(file, folder, k), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the run over {file.name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def resumed(file: Path, folder: Path, k: int, samples: int) -> dict[str, Any]:
    """Kills a process after half of its samples, and returns the results of a second process that finishes the work."""
    began = time.perf_counter()
    first = subprocess.run([*command(file, folder, k), str(samples // 2)], capture_output=True, text=True, check=False)
    if first.returncode != -signal.SIGKILL:
        raise RuntimeError(
            f"the process was not killed by SIGKILL; its exit status is {first.returncode}:\n{first.stderr[-3000:]}"
        )
    return {"killed_at_seconds": round(time.perf_counter() - began, 1), **measured(file, folder, k)}


def command(file: Path, folder: Path, k: int) -> list[str]:
    script = Path(__file__).with_name("million_run.py")
    return [sys.executable, str(script), str(file), str(folder), str(k)]


def parser() -> argparse.ArgumentParser:
    parser = program(__doc__)
    add = parser.add_argument
    add(
        "--trajectories",
        type=positive,
        nargs="+",
        default=list(SIZES),
        help="numbers of trajectories in ascending order (10,000 to 1,000,000)",
    )
    add("--turns", type=positive, default=3, help="number of turns of each trajectory (3; at most 5)")
    add("--k", type=positive, default=4, help="number of samples of a turn (4)")
    add(
        "--resume",
        type=positive,
        default=100_000,
        help="number of trajectories of the run that is killed and resumed (100,000)",
    )
    add(
        "--folder",
        type=Path,
        default=None,
        help="folder for the files, about 4 GB for a million (default: a temporary folder)",
    )
    parser.set_defaults(device="cpu", threads=1, seed=0, rounds=1)
    return parser


if __name__ == "__main__":
    main()
