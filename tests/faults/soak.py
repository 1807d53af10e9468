"""A long run with its time compressed: does it hold more and more memory, file handles or threads?

python tests/faults/soak.py --hours 48
python tests/faults/soak.py --hours 48 --scene episodes --out outputs/soak
python tests/faults/report.py                            writes docs/reliability.md from what is there

What a run piles up, it piles up by events, not by the clock: collections, updates, checkpoints, evaluations, questions to a
judge, lines of metrics and of rollouts. So the run is train.py itself, at the smallest size, and makes as many events as 48
hours at the size of a paper would, or more: an hour is 20 iterations, a checkpoint each, and one evaluation. The planner puts
an iteration of `method=pivotrl scale=paper` at 5.4 minutes on eight H100, 11 an hour (`scripts/plan.py`); those of others longer.
What is not compressed: an iteration here has 16 or 8 rollouts and not 1,024, so what grows by the rollout or by the token grows
more slowly here than there.

The process is looked at every hour (watch.py). Of the later half of the looks a line is fitted; the run is flat if the 95 %
interval of its slope ends below --allowed, that of the processes that it started too, and no more of these, of file handles and
of threads are there in the end than in the middle. An
interval that reaches across --allowed is `unclear`: more hours narrow it.
The last line is one JSON object; the exit status is 1 where the verdict is not `flat`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch: threads do not survive a fork

import numpy as np  # noqa: E402
from campaign import version  # noqa: E402
from processes import Start, preload  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn  # noqa: E402
from scenes import SOAKED, Scene  # noqa: E402

ITERATIONS = 20  # an hour, unless told otherwise; an evaluation at its end
EVENTS = ("checkpoints", "evaluations", "trees", "questions", "metric_lines")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--hours",
        type=int,
        default=48,
        help="simulated (default 48); at least 8, or there is no later half to speak of",
    )
    add("--scene", choices=sorted(SOAKED), default="judged", help="what is run (default judged)")
    add("--iterations", type=int, default=ITERATIONS, help=f"of an hour (default {ITERATIONS})")
    add("--allowed", type=float, default=0.5, help="MiB an hour that resident memory may grow (default 0.5)")
    add("--out", default="outputs/soak", help="folder of the records (default outputs/soak)")
    return parser


def soak(scene: Scene, hours: int, iterations: int, allowed: float, out: Path) -> dict[str, Any]:
    """Run a scene for so many simulated hours of so many iterations and judge the looks at it.

    Raises:
        SystemExit: the run failed.
    """
    folder = out.resolve() / scene.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    samples = folder / "samples.jsonl"
    watch = f"{{_target_: watch.Watch, every: {iterations}, out: {samples}, folder: {folder / 'run'}}}"
    began, code = time.monotonic(), version()
    server = scene.server and scene.server(folder)
    overrides = [
        *(option for option in scene.command(folder, server) if option != "logger.wandb=null"),
        f"trainer.max_epochs={hours * iterations}",
        f"eval.every={iterations}",
        f"+callbacks.watch={watch}",
    ]
    start = Start(overrides, folder / "start.log")
    try:
        follow(start, samples, hours)
    finally:
        start.kill(group=True)
        start.clear()
        if server is not None:
            server.stop()
    if start.status != 0:
        raise SystemExit(f"the run failed: {start.said()[-3000:]}")
    found = verdict(read(samples), allowed)
    return {
        "scene": scene.name,
        "simulated_hours": hours,
        "iterations": hours * iterations,
        **found,
        "events": events(folder / "run"),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "code": code,
    }


def follow(start: Start, samples: Path, hours: int) -> None:
    """A bar by the hour until the run has ended; a line where the output is no terminal."""
    console = Console(stderr=True)
    columns = [
        *Progress.get_default_columns()[:2],
        TextColumn("{task.completed:.0f}/{task.total:.0f} h"),
        TimeElapsedColumn(),
    ]
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("simulated", total=hours)
        told = 0
        while start.wait(1.0):
            rows = read(samples)
            bar.update(task, completed=len(rows))
            if len(rows) > told and not console.is_terminal:
                told = len(rows)
                console.print(
                    f"{told} of {hours} h: {rows[-1]['rss']:.1f} MiB, {rows[-1]['fds']} files", highlight=False
                )


MEMORY = {"rss": "memory", "children_rss": "memory of its processes"}  # in the look, in the verdict
COUNTS = ("fds", "threads", "children")


def verdict(samples: list[dict[str, Any]], allowed: float) -> dict[str, Any]:
    """What the later half of the looks says. The interval of the slope is that of least squares, widened for looks that resemble
    the ones before them. What ends above ``allowed`` is a growth where the interval also begins there, and unclear where not.

    Raises:
        ValueError: there are fewer than eight looks.
    """
    if len(samples) < 8:
        raise ValueError(f"a slope over the later half needs at least 8 looks, got {len(samples)}")
    half = len(samples) // 2
    later, hours = samples[half:], np.arange(half, len(samples), dtype=float)
    growth = {name: later[-1][name] - samples[half - 1][name] for name in (*COUNTS, "objects", "files")}
    slopes = {name: line(hours, np.array([row[name] for row in later])) for name in MEMORY}
    interval = {name: (slope - 1.96 * error, slope + 1.96 * error) for name, (slope, error) in slopes.items()}
    grown = [MEMORY[name] for name, (low, _) in interval.items() if low > allowed]
    grown += [name for name in COUNTS if growth[name] > 0]
    unclear = [MEMORY[name] for name, (_, high) in interval.items() if high > allowed]
    if grown:
        found = "grows: " + ", ".join(grown)
    else:
        found = "unclear: " + ", ".join(unclear) if unclear else "flat"
    return {
        "rss_growth_mb_per_hour": round(slopes["rss"][0], 4),
        "rss_growth_ci95": [round(end, 4) for end in interval["rss"]],
        "rss_of_children_growth_ci95": [round(end, 4) for end in interval["children_rss"]],
        "rss_mb": [samples[0]["rss"], samples[half]["rss"], samples[-1]["rss"]],
        "rss_of_children_mb": [row["children_rss"] for row in (samples[half], samples[-1])],
        "fd_growth": growth["fds"],
        "threads_growth": growth["threads"],
        "objects_growth": growth["objects"],
        "files_growth": growth["files"],
        "disk_mb": [samples[half]["disk"], samples[-1]["disk"]],
        "verdict": found,
    }


def line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope of the fitted line and its standard error, of which the autocorrelation of the residuals makes more."""
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    rest = y - y.mean() - slope * centred
    error = float(np.sqrt(rest @ rest / (len(x) - 2) / (centred @ centred)))
    spread = float(rest @ rest)
    alike = max(0.0, min(0.9, float(rest[1:] @ rest[:-1]) / spread)) if spread > 0 else 0.0
    return slope, error * float(np.sqrt((1 + alike) / (1 - alike)))


def events(run: Path) -> dict[str, int]:
    """How much of each kind of event the run's own records tell of."""
    rows = read(run / "metrics.jsonl")
    trained = [row for row in rows if row["phase"] == "train"]
    counts = (
        len(trained),
        sum(row["phase"] == "eval" for row in rows),
        len(read(run / "rollouts" / "train.jsonl")),
        int(trained[-1].get("judge/asked", 0)),
        len(rows),
    )
    return dict(zip(EVENTS, counts, strict=True))


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that may be written just now."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 1 where the run was not shown to be flat."""
    args = parser().parse_args(arguments)
    if args.hours < 8:
        raise SystemExit(f"--hours must be at least 8, got {args.hours}")
    preload()
    found = soak(SOAKED[args.scene], args.hours, args.iterations, args.allowed, Path(args.out))
    (Path(args.out) / f"{args.scene}.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(json.dumps(found))
    return int(found["verdict"] != "flat")


if __name__ == "__main__":
    sys.exit(main())
