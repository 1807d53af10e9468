"""Hurt runs of train.py at random moments and see that each still ends right, or says in one clear line what to do.

python tests/faults/campaign.py --runs 200 --out outputs/faults
python tests/faults/campaign.py --runs 200 --minutes 10      goes on where it stopped, for about ten minutes
python tests/faults/report.py                                writes docs/reliability.md from what is there

Each of the runs is one of the scenes (scenes.py) under one of its faults (injuries.py), both drawn from the seed and the run's
number. In the end weights, metrics, rollouts and result must equal those of an undisturbed run, bit for bit, whose process was
started afresh; disturbed ones are forked from a process that has imported what a run imports. Two things may differ
(verdict.py): last digits where batches differ, and what comes after a rollout that was drawn anew because its world was killed.
The last line is one JSON object: `runs` in which
something was hurt, `lost` and `wrong` ones, and `unclear` ones, which ended without a result and without a clear message. The
exit status is 1 where one of the three is not 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch: threads do not survive a fork

from injuries import FAULTS  # noqa: E402
from processes import PATIENCE, Start, preload  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn  # noqa: E402
from scenes import SCENES, Scene  # noqa: E402
from servers import Server  # noqa: E402
from trial import Trial, Unclear  # noqa: E402
from verdict import RECORDS, faults_of, metrics  # noqa: E402


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--runs",
        type=int,
        default=200,
        help="how many in which something is hurt, those that are in the file included (default 200)",
    )
    add("--seed", type=int, default=0, help="of what happens to which run (default 0)")
    add("--minutes", type=float, help="begin no further run after so long; the same command goes on")
    add(
        "--out",
        default="outputs/faults",
        help="folder of the records, and of runs that went wrong (default outputs/faults)",
    )
    add(
        "--forked", action="store_true", help="fork the undisturbed runs too: a quarter of their time, for a short look"
    )
    add("--scenes", nargs="+", choices=sorted(SCENES), default=sorted(SCENES))
    add("--faults", nargs="+", choices=sorted(FAULTS), default=sorted(FAULTS))
    return parser


def plan(number: int, args: argparse.Namespace) -> tuple[Scene, str, random.Random]:
    """What happens in a run: a function of the seed and its number."""
    rng = random.Random(f"{args.seed} {number}")
    pairs = [(SCENES[name], fault) for name in args.scenes for fault in SCENES[name].faults if fault in args.faults]
    if not pairs:
        raise SystemExit("none of these scenes has one of these faults")
    return *pairs[number % len(pairs)], rng


class Campaign:
    """References, made when first asked for, and the runs that are measured against them."""

    def __init__(self, out: Path, seed: int, forked: bool = False) -> None:
        self.out, self.seed, self.forked = out.resolve(), seed, forked
        self.records = self.out / "runs.jsonl"
        self.out.mkdir(parents=True, exist_ok=True)
        self.lengths: dict[str, float] = {}
        self.servers: dict[type[Server], Server] = {}

    def server(self, scene: Scene) -> Server | None:
        """The one that a scene asks, running; runs share it."""
        kind = scene.server
        if kind is None:
            return None
        if kind not in self.servers:
            folder = self.out / "servers" / kind.__name__.lower()
            folder.mkdir(parents=True, exist_ok=True)
            self.servers[kind] = kind(folder)
        return self.servers[kind]

    def close(self) -> None:
        """End the servers."""
        while self.servers:
            self.servers.popitem()[1].stop()

    def reference(self, scene: Scene) -> Path:
        """The undisturbed run of a scene: begun from nothing, by the code as it is."""
        folder = self.out / f"reference-{scene.name}"
        stamp = folder / "code"
        code = version()
        if not (stamp.exists() and stamp.read_text() == code):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self._undisturbed(scene, folder, cold=not self.forked)
            stamp.write_text(code)
        if scene.name not in self.lengths:
            warm = self.out / "warm"
            shutil.rmtree(warm, ignore_errors=True)
            warm.mkdir()
            self.lengths[scene.name] = self._undisturbed(scene, warm, cold=False)
            if any(faults_of(folder / "run", warm / "run", near=scene.near).values()):
                raise SystemExit(f"two undisturbed runs of {scene.name} differ: {folder}, {warm}")
            shutil.rmtree(warm)
        return folder / "run"

    def _undisturbed(self, scene: Scene, folder: Path, cold: bool) -> float:
        server = self.server(scene)
        start = Start(scene.command(folder, server), folder / "start.log", cold)
        if start.compute(PATIENCE):
            raise SystemExit(f"the undisturbed run of {scene.name} does not end")
        start.clear()
        if start.status != 0:
            raise SystemExit(f"the undisturbed run of {scene.name} failed: {start.said()[-3000:]}")
        trained = [row for row in metrics(folder / "run") if row["phase"] == "train"]
        if sum(row["train/grad_norm"] > 0 for row in trained) < 3:
            raise SystemExit(f"the undisturbed run of {scene.name} hardly learns: there would be nothing to lose")
        return start.computed

    def run(self, number: int, scene: Scene, fault: str, rng: random.Random) -> dict[str, Any]:
        """One disturbed run and its verdict, as a record."""
        reference = self.reference(scene)
        folder = self.out / f"run-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        server = self.server(scene)
        began = time.monotonic()
        trial = Trial(folder, scene.command(folder, server), rng, self.lengths[scene.name], server)
        found: dict[str, list[str]] = {"lost": [], "wrong": [], "unclear": []}
        try:
            FAULTS[fault](trial)
            told = {name for name in RECORDS if any(f"{name}: " in s and s.startswith("told") for s in trial.story)}
            torn = {name: lost for name, lost in trial.torn.items() if name in told}
            found |= faults_of(reference, folder / "run", torn, scene.near, trial.killed_workers)
        except Unclear as error:
            found["unclear"].append(str(error))
            self.close()  # in whichever state it was left
        except (Exception, SystemExit) as error:  # what was left cannot even be read, or a server did not come back
            found["wrong"].append(repr(error))
            self.close()
        kinds = [kind for kind, reasons in found.items() if reasons]
        if not kinds:
            shutil.rmtree(folder)
        return {
            "run": number,
            "scene": scene.name,
            "fault": fault,
            "seed": self.seed,
            "hurts": trial.hurts,
            "starts": trial.starts,
            "seconds": round(time.monotonic() - began, 2),
            "verdict": kinds[0] if kinds else "right",
            "why": [reason for reasons in found.values() for reason in reasons],
            "story": [line.replace(str(folder), "") for line in trial.story],
            "code": version(),
        }


def version() -> str:
    """The commit, with + where files that git knows have changed since."""
    head = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    dirty = subprocess.run(
        ["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def hurt(records: Mapping[int, dict[str, Any]]) -> int:
    """Runs in which something was hurt, or that went wrong without."""
    return sum(record["hurts"] > 0 or record["verdict"] != "right" for record in records.values())


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 1 where a run was lost, wrong or unclear."""
    args = parser().parse_args(arguments)
    preload()
    campaign = Campaign(Path(args.out), args.seed, args.forked)
    records = {record["run"]: record for record in read(campaign.records)}
    console = Console(stderr=True)
    began = time.monotonic()
    columns = [
        *Progress.get_default_columns()[:2],
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
    ]
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=args.runs, completed=hurt(records))
        for number in count():
            if hurt(records) >= args.runs:
                break
            if number in records:
                continue
            if args.minutes is not None and time.monotonic() - began > 60 * args.minutes:
                break
            record = records[number] = campaign.run(number, *plan(number, args))
            with campaign.records.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
            bar.update(task, completed=hurt(records))
            if record["verdict"] != "right" or not console.is_terminal:
                told = f": {'; '.join(record['why'])}" if record["why"] else ""
                line = f"{number} {record['scene']} {record['fault']}, {record['seconds']} s: {record['verdict']}{told}"
                console.print(line, highlight=False, markup=False)
    campaign.close()
    verdicts = [record["verdict"] for record in records.values()]
    summary = {"runs": hurt(records), **{kind: verdicts.count(kind) for kind in ("lost", "wrong", "unclear")}}
    print(json.dumps(summary))
    return int(any(summary[kind] for kind in ("lost", "wrong", "unclear")))


if __name__ == "__main__":
    sys.exit(main())
