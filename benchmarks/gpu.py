"""Runs all tests and benchmarks that need a device, one part after another, and saves the results (`make gpu`).

python benchmarks/gpu.py                              all parts, on CUDA
python benchmarks/gpu.py parts=attention,update_4b    only these parts
python benchmarks/gpu.py dry=cpu                      the same code with tiny shapes on a CPU
python benchmarks/gpu.py again=true out=FOLDER        also finished parts, in another folder

A part is a command with a time limit (gpu_parts.py) and a folder, outputs/gpu/<part>, with its output and part.json.
The files report.md and results.json are beside these folders. A part that was finished by the same command on the same
device is not run again. The last line is one JSON object. Exit status: 0 if no part failed or exceeded its time limit,
1 if a part did, 2 if the command cannot be used.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gpu_parts import DRY, Outcome, Part, parts_of
from gpu_report import headline, page, told_machine
from turnwise.errors import InputError
from turnwise.files import atomic_write

ROOT = Path(__file__).resolve().parents[1]
GRACE = 10.0  # seconds between asking a part to end (SIGTERM) and killing it (SIGKILL)
KEPT = 3  # number of last lines of an error that the report shows
WORDS = ("parts", "dry", "out", "again")


def main(arguments: Sequence[str] | None = None) -> int:
    console = Console(stderr=True)
    try:
        words = words_of(sys.argv[1:] if arguments is None else arguments)
        dry = words.get("dry") == DRY
        out = Path(words.get("out") or ROOT / "outputs" / ("gpu-dry" if dry else "gpu"))
        parts = parts_of(dry, out)
        chosen = chosen_parts(words.get("parts"), parts)
        out.mkdir(parents=True, exist_ok=True)
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    machine = told_machine(dry)
    if not dry and "gpu" not in machine:
        print("torch finds no CUDA device here; dry=cpu runs the same parts with tiny shapes on a CPU", file=sys.stderr)
        return 2
    began = time.monotonic()
    outcomes: list[Outcome] = []
    for part in chosen:
        again = words.get("again") == "true"
        kept = None if again else finished(out / part.name, part, machine)
        if kept is None:
            console.print(f"{part.name}: {part.says} (at most {part.limit:.0f} s)", highlight=False)
        outcome = kept or run(part, out / part.name, machine, again)
        outcomes.append(outcome)
        console.print(
            f"{part.name}: {outcome.status}{' before' if kept else ''} {outcome.reason}", highlight=False, markup=False
        )
        write(out, parts, outcomes)
    show(outcomes)
    counts = {
        status: sum(o.status == status for o in outcomes) for status in ("done", "failed", "out of time", "not here")
    }
    report = str(out / "report.md")
    print(json.dumps({"benchmark": "gpu", **counts, "seconds": round(time.monotonic() - began, 1), "report": report}))
    return 1 if counts["failed"] or counts["out of time"] else 0


def words_of(arguments: Sequence[str]) -> dict[str, str]:
    """Parses the words of the command line.

    Raises:
        InputError: a word is unknown, has an unusable value, or occurs twice.
    """
    found: dict[str, str] = {}
    for word in arguments:
        name, _, value = word.partition("=")
        if name in ("-h", "--help"):
            print(__doc__)
            raise SystemExit(0)
        if name not in WORDS or not value or name in found:
            raise InputError(
                f"{word}: write each of {', '.join(f'{known}=...' for known in WORDS)} at most once, with a value"
            )
        found[name] = value
    if found.get("dry", DRY) != DRY:
        raise InputError(f"dry={found['dry']}: the only possible value is dry={DRY}")
    if found.get("again", "true") not in ("true", "false"):
        raise InputError(f"again={found['again']}: must be true or false")
    return found


def chosen_parts(names: str | None, parts: Sequence[Part]) -> list[Part]:
    """Returns the parts that ``names`` lists (None: all parts), in the order of ``parts``.

    Raises:
        InputError: a name is unknown.
    """
    known = [part.name for part in parts]
    wanted = names.split(",") if names else known
    if strange := [name for name in wanted if name not in known]:
        raise InputError(f"parts={names}: no part is called {', '.join(strange)}; choose from {', '.join(known)}")
    return [part for part in parts if part.name in wanted]


def before(folder: Path) -> Outcome | None:
    """Returns the outcome of a part that an earlier start saved, or None if nothing readable was saved."""
    try:
        return Outcome(**json.loads((folder / "part.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def finished(folder: Path, part: Part, machine: dict[str, Any]) -> Outcome | None:
    """Returns the saved outcome of a part, if the same command was finished on the same device, otherwise None."""
    kept = before(folder)
    if kept is None or kept.status != "done" or kept.command != list(part.command):
        return None
    return kept if kept.machine.get("gpu") == machine.get("gpu") else None


def run(part: Part, folder: Path, machine: dict[str, Any], again: bool = False) -> Outcome:
    """Runs a part in its own process group, which is ended at the time limit, and saves its output and outcome."""
    folder.mkdir(parents=True, exist_ok=True)
    command = list(part.command)
    began = time.monotonic()
    with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as err:
        given = [*command, *(part.fresh if again else ())]
        process = subprocess.Popen(given, stdout=out, stderr=err, cwd=ROOT, env=environment(), start_new_session=True)
        try:
            status: int | None = process.wait(part.limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(process)
    seconds = round(time.monotonic() - began, 1)
    result = last_line(folder / "stdout.txt")
    if status is None:
        became, reason = "out of time", f"its limit of {part.limit:.0f} s was reached"
    elif status != 0:
        became, reason = "failed", f"exit status {status}: {ending(folder / 'stderr.txt')}"
    elif "not_here" in result:
        became, reason = "not here", str(result["not_here"])
    elif "unfinished" in result:
        became, reason = "out of time", str(result["unfinished"])
    elif not result:
        became, reason = "failed", "its last line is no JSON object"
    else:
        became, reason = "done", ""
    return keep(folder, Outcome(part.name, command, became, reason, seconds, result, machine))


def environment() -> dict[str, str]:
    """Returns the environment variables of a part: this folder's package is imported, and output is not buffered."""
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "WANDB_MODE": "disabled",
    }


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a part's process group, first with SIGTERM and after some seconds with SIGKILL."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)


def last_line(path: Path) -> dict[str, Any]:
    """Returns the JSON object on the last line of a file, or an empty object if there is none."""
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    with suppress(ValueError):
        found = json.loads(lines[-1]) if lines else {}
        return found if isinstance(found, dict) else {}
    return {}


def ending(path: Path) -> str:
    """Returns the last lines of a file, joined to one line."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-KEPT:])[-600:]


def keep(folder: Path, outcome: Outcome) -> Outcome:
    with atomic_write(folder / "part.json") as part:
        part.write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="utf-8")
    return outcome


def write(out: Path, parts: Sequence[Part], outcomes: Sequence[Outcome]) -> None:
    """Writes the report and all results. For parts that were not chosen, results of an earlier start are used."""
    now = {outcome.part: outcome for outcome in outcomes}
    known = [found for part in parts if (found := now.get(part.name) or before(out / part.name)) is not None]
    with atomic_write(out / "report.md") as part:
        part.write_text(page(known), encoding="utf-8")
    with atomic_write(out / "results.json") as part:
        part.write_text(json.dumps([asdict(outcome) for outcome in known], indent=1) + "\n", encoding="utf-8")


def show(outcomes: Sequence[Outcome]) -> None:
    table = Table(title="make gpu", title_justify="left")
    for name in ("part", "status", "s", "what it says"):
        table.add_column(name, justify="right" if name == "s" else "left")
    for outcome in outcomes:
        table.add_row(outcome.part, outcome.status, f"{outcome.seconds:.0f}", headline(outcome))
    Console(width=160).print(table, markup=False)


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # the running part is ended before the program exits
    sys.exit(main())
