"""Kills runs with SIGKILL at random moments, starts them again, and checks that each ends bit for bit like a run that
nobody killed: weights, rows of metrics without clocks, evaluations and recorded rollouts.

    python tests/kill.py                                    # 40 kills over all configurations
    python tests/kill.py --kills 6 --only pivotrl trace     # fewer
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.integration.warm import CLOCKS, Run  # noqa: E402 - the root is on the path only from here on
from tests.integration.watched import end, outcome, wait_until  # noqa: E402

SMALL = (
    "policy.model=tiny",
    "name=kill",
    "data.trajectories=6",
    "rollout.states=6",
    "rollout.trajectories=null",
    "rollout.recorded=6",
    "rollout.sampling.max_tokens=8",
    "eval.tasks=2",
    "eval.attempts=1",
    "eval.items=1",
    "iterations=5",
    "update.learning_rate=0.01",
    "update.warmup=0",
    "update.allow_empty=true",
    "logger.wandb=null",
)
SHORT = ("env.horizon=6", "allocator.group_size=4")
PIVOTRL = ("method=pivotrl", "states.keep=all", "states.k=2", *SHORT)
CONFIGURATIONS: Mapping[str, tuple[str, ...]] = {
    "pivotrl": PIVOTRL,
    "trace": ("method=trace", "env=household", "env.horizon=6", "allocator.budget=24"),
    "awpo": ("method=awpo", "allocator.group_size=4", "rollout.sampling.max_tokens=24"),
    "selective": ("method=selective", "env.horizon=6", "gate.k=2", "rollout.states=4"),
    "staleness": (*PIVOTRL, "rollout.staleness=1"),
    "processes": (*PIVOTRL, "trainer.devices=2"),
}


def start(overrides: Sequence[str], folder: Path) -> Run:
    places = [f"paths.out={folder}", f"paths.cache={folder.parent / 'cache'}"]
    return Run([*SMALL, *overrides, *places])


def finish(overrides: Sequence[str], folder: Path) -> tuple[float, float]:
    """Runs to the end. Returns the seconds until the run had its folder, and the seconds until its end."""
    began, process = time.monotonic(), start(overrides, folder)
    try:
        wait_until(process, lambda: process.poll() is not None or (folder / "config.yaml").exists())
        ready = time.monotonic() - began
        _, error = outcome(process)
    finally:
        end(process)
    assert process.returncode == 0, f"{folder}: exit status {process.returncode}\n{error[-3000:]}"
    return ready, time.monotonic() - began


def rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):  # a killed run may leave an incomplete last line
            yield json.loads(line)


def trained(folder: Path) -> int:
    return sum(row["phase"] == "train" for row in rows(folder / "metrics.jsonl"))


def ending(folder: Path) -> dict[str, Any]:
    """Returns everything in which two runs of one configuration must be equal."""
    metrics = [
        {name: value for name, value in row.items() if not name.startswith(CLOCKS)}
        for row in rows(folder / "metrics.jsonl")
    ]
    files = [*sorted((folder / "evaluation").glob("*.jsonl")), folder / "rollouts" / "train.jsonl"]
    files += sorted(path for name in ("adapter", "model") for path in (folder / name).glob("*.safetensors"))
    result = json.loads((folder / "result.json").read_text())
    wanted = ("in_domain", "ood", "rollout_turns", "rollout_tokens", "verifier", "pivots", "gate", "config_hash")
    return {
        "metrics": metrics,
        "result": {name: result.get(name) for name in wanted},
        **{str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    }


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]


def saved(folder: Path) -> int:
    """Returns the number of iterations in the last checkpoint; 0 where there is none, or it is being replaced."""
    import torch  # only needed here, and slow to import

    with suppress(OSError, RuntimeError, EOFError, KeyError, ValueError):
        return int(torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["epoch"]) + 1
    return 0


def killed(
    overrides: Sequence[str], folder: Path, kills: int, ready: float, whole: float, draw: random.Random
) -> tuple[int, float]:
    """Starts the run, kills it up to ``kills`` times, and starts it a last time if it has not ended. Returns the number
    of kills and the shortest known duration of a whole run: a first start may compile, or share the machine.
    """
    done = 0
    while done < kills:
        began, process = time.monotonic(), start(overrides, folder)
        try:
            process.communicate(draw.uniform(min(ready, 0.4 * whole), 0.9 * whole))
            whole = min(whole, time.monotonic() - began)
            break  # the run has ended before the kill
        except subprocess.TimeoutExpired:
            done += 1
        finally:
            end(process)
        lost = trained(folder) - saved(folder)
        assert lost <= 1, f"{folder}: the kill lost {lost} iterations"
    finish(overrides, folder)
    return done, whole


def check(name: str, kills: int, folder: Path, seed: int = 0, each: int = 3) -> None:
    """Kills runs of the configuration ``name``, each at most ``each`` times, until there were ``kills`` kills.

    Raises:
        AssertionError: a run failed, ended differently, or lost more than one iteration.
    """
    overrides, draw = CONFIGURATIONS[name], random.Random(f"{seed}/{name}")
    folder.mkdir(parents=True, exist_ok=True)
    ready, whole = finish(overrides, folder / "whole")
    expected, done, number = ending(folder / "whole"), 0, 0
    rewards = [row.get("train/grad_norm", 0.0) for row in expected["metrics"] if row["phase"] == "train"]
    assert any(rewards), f"{name}: no update has changed a weight, so that a kill could lose nothing"
    while done < kills:
        number += 1
        assert number <= 3 * kills + 3, f"{name}: {number - 1} runs ended before their kills"
        again = folder / f"killed-{number}"
        kills_of_run, whole = killed(overrides, again, min(each, kills - done), ready, whole, draw)
        done += kills_of_run
        different = differences(expected, ending(again))
        assert not different, f"{again}: differs from {folder / 'whole'} in {', '.join(different)}"
        print(f"{name}: {done} of {kills} kills, equal to a run of {whole:.0f} s without a kill", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="kills over all configurations together")
    parser.add_argument("--only", nargs="+", default=list(CONFIGURATIONS), choices=CONFIGURATIONS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the runs are kept (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for place, name in enumerate(args.only):
            kills = args.kills * (place + 1) // len(args.only) - args.kills * place // len(args.only)
            check(name, kills, (args.folder or Path(temporary)) / name, args.seed)


if __name__ == "__main__":
    main()
