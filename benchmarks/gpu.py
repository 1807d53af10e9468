"""Runs all tests and benchmarks that need a device, the most valuable first, and saves the results (`make gpu`).

python benchmarks/gpu.py                              all parts, on CUDA
python benchmarks/gpu.py parts=tests,update_4b        only these parts
python benchmarks/gpu.py dry=cpu                      the same code with tiny shapes on a CPU
python benchmarks/gpu.py again=true out=FOLDER        also finished parts, in another folder
python benchmarks/gpu.py tests                        only the tests that are marked gpu

A part is a command with a time limit and a folder, outputs/gpu/<part>, with its output and part.json. The files
report.md and results.json beside these folders are written after every part, so that a session that is cut off keeps
what it has measured. A part that was finished by the same command on the same device is not run again. The last line is
one JSON object. Exit status: 0 if no part failed or exceeded its time limit, 1 if a part did, 2 for an unusable command.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from report import by_name, markdown
from turnwise.errors import InputError
from turnwise.files import atomic_write

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
VLLM = Path(os.environ.get("TURNWISE_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
GRACE = 10.0  # seconds between asking a part to end (SIGTERM) and killing it (SIGKILL)
DRY_LIMIT = 300.0
MIB = 2**20
WORDS = ("parts", "dry", "out", "again")
LIBRARIES = ("torch", "transformers", "trl", "peft", "lightning", "triton", "kernels")
# It runs in a process of its own, so that the process that starts the parts uses no device memory
DEVICE = """
import json, torch
if torch.cuda.is_available():
    about = torch.cuda.get_device_properties(0)
    named = {"gpu": about.name, "gpus": torch.cuda.device_count(), "gpu_gb": round(about.total_memory / 1e9, 1)}
    print(json.dumps({**named, "cuda": torch.version.cuda}))
"""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    command: tuple[str, ...]
    limit: float  # seconds after which the command is ended


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status`` is ``done``, ``failed``, ``out of time`` or ``not here`` (a requirement is missing), ``result`` the JSON
    object of the last output line.
    """

    part: str
    command: list[str]
    status: str
    reason: str = ""
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)


# Name of a part -> seconds, script, options on CUDA, options of a dry run. One pass of a peer has as many tokens as fit into
# 80 GB without recomputation: 2.6 MB a token at 0.6B, 7.3 MB at 4B.
BF16 = "--device cuda --dtype bfloat16"
DRY = "--device cpu --shape qwen3-dry"
DRY_UPDATE = (
    f"{DRY} --state 16 --actions 3 --action 4 --roots 2 --branches 1 --turns 3 --tree-state 8 --tree-action 3 "
    "--tree-observation 3 --tree-rounds 1 --rounds 1 --keep-going --peers"
)
DRY_ROLLOUT = f"{DRY} --tasks 1 --group 2 --horizon 2 --rounds 1 --max-tokens 4 --max-length 1024 --continuous-rows 2"
ROLLOUT = f"{BF16} --max-length 2048 --continuous-rows 64 --continuous-tokens 4096 --keep-going"
FEW = "eval.tasks=4 eval.attempts=1 eval.items=1 eval.every=0 logger.wandb=null"
DRY_RUN = f"{FEW} iterations=1 data.trajectories=20 rollout.trajectories=null rollout.states=4 states.keep=all"
PARTS: dict[str, tuple[int, str, str, str]] = {
    "tests": (100, "gpu.py", "tests", "tests"),
    "update_0_6b": (
        150,
        "update.py",
        f"{BF16} --shape qwen3-0.6b --state 2048 --actions 16 --action 256 --row-tokens 8192 --group-tokens 16384 --turns 8 "
        "--tree-state 512 --tree-action 64 --tree-observation 64 --tree-row-tokens 16384 --tree-tokens 16384 --rounds 5 "
        "--tree-rounds 3 --keep-going",
        f"{DRY_UPDATE} padded trl trl_trie",
    ),
    "rollout_0_6b": (190, "rollout.py", f"{ROLLOUT} --shape qwen3-0.6b --horizon 4 --rounds 2", DRY_ROLLOUT),
    "update_4b": (
        180,
        "update.py",
        f"{BF16} --shape qwen3-4b --state 1024 --actions 16 --action 128 --row-tokens 4096 --group-tokens 4608 --turns 8 "
        "--tree-state 256 --tree-action 32 --tree-observation 32 --tree-row-tokens 8192 --tree-tokens 4608 --rounds 3 "
        "--tree-rounds 2 --keep-going",
        f"{DRY_UPDATE} padded trl trl_trie",
    ),
    "rollout_4b": (190, "rollout.py", f"{ROLLOUT} --shape qwen3-4b --horizon 5 --rounds 1", DRY_ROLLOUT),
    "recompute": (
        110,
        "update.py",
        f"{BF16} --shape qwen3-4b --state 1024 --actions 16 --action 64 --row-tokens 4096 --rounds 3 --tree-rounds 1 "
        "--peers recompute offload",
        f"{DRY_UPDATE} recompute offload",
    ),
    "runs": (
        520,
        "by_name.py",
        f"--overrides trainer=gpu iterations=4 {FEW}",
        f"--methods pivotrl --overrides {DRY_RUN}",
    ),
}


def parts_of(dry: bool) -> list[Part]:
    """Returns all parts, for CUDA or as a dry run on a CPU."""
    found = []
    for name, (seconds, script, given, dry_given) in PARTS.items():
        limit = DRY_LIMIT if dry else float(seconds)
        command = [sys.executable, str(BENCHMARKS / script), *(dry_given if dry else given).split()]
        if script == "rollout.py" and VLLM.exists() and not dry:
            command += ["--vllm-python", str(VLLM)]
        found.append(Part(name, tuple(command), limit))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["tests"]:
        return tests()
    try:
        words = words_of(given)
        dry = words.get("dry") == "cpu"
        out = Path(words.get("out") or ROOT / "outputs" / ("gpu-dry" if dry else "gpu"))
        parts = parts_of(dry)
        names = words["parts"].split(",") if "parts" in words else [part.name for part in parts]
        if strange := sorted(set(names) - {part.name for part in parts}):
            raise InputError(f"parts={','.join(strange)}: choose from {', '.join(part.name for part in parts)}")
        machine = about_machine(dry)
        if not dry and "gpu" not in machine:
            raise InputError("torch finds no CUDA device here; dry=cpu runs the same parts with tiny shapes on a CPU")
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    again = words.get("again") == "true"
    for part in (part for part in parts if part.name in names):
        kept = None if again else finished(out / part.name, part, machine)
        if kept is None:
            print(f"{part.name}: at most {part.limit:.0f} s", file=sys.stderr)
        outcomes.append(kept or run(part, out / part.name, machine))
        last = outcomes[-1]
        print(f"{part.name}: {last.status}{' before' if kept else ''} {headline(last)}", file=sys.stderr)
        write(out, parts, outcomes)
    statuses = ("done", "failed", "out of time", "not here")
    counts = {status: sum(o.status == status for o in outcomes) for status in statuses}
    told = {"seconds": round(time.monotonic() - began, 1), "report": str(out / "report.md")}
    print(json.dumps({"benchmark": "gpu", **counts, **told}))
    return 1 if counts["failed"] or counts["out of time"] else 0


def words_of(arguments: Sequence[str]) -> dict[str, str]:
    """Parses the words of the command line.

    Raises:
        InputError: a word is unknown, has an unusable value, or occurs twice.
    """
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        raise SystemExit(0)
    pairs = [word.partition("=")[::2] for word in arguments]
    found = dict(pairs)
    usable = set(found) <= set(WORDS) and len(found) == len(pairs) and all(found.values())
    if not usable or found.get("dry", "cpu") != "cpu" or found.get("again", "true") not in ("true", "false"):
        raise InputError(
            f"{' '.join(arguments)}: write each of parts=..., dry=cpu, out=... and again=true at most once"
        )
    return found


def tests() -> int:
    """Runs the tests that are marked `gpu`, and counts them in one JSON object on the last line of the output."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, sep="\n")
    if done.returncode:
        print(done.stdout[-1500:], file=sys.stderr)
    matches = {kind: re.search(rf"(\d+) {kind}\b", done.stdout) for kind in ("passed", "failed", "skipped")}
    found: dict[str, object] = {kind: int(match[1]) if match else 0 for kind, match in matches.items()}
    if found["skipped"] and not found["passed"] and not found["failed"]:
        found["not_here"] = f"no CUDA device: all {found['skipped']} tests were skipped"
    print(json.dumps({"benchmark": "tests", **found}))
    return done.returncode


def before(folder: Path) -> Outcome | None:
    """Returns the outcome of a part that an earlier start saved, or None if nothing readable was saved."""
    with suppress(OSError, ValueError, TypeError):
        return Outcome(**json.loads((folder / "part.json").read_text(encoding="utf-8")))
    return None


def finished(folder: Path, part: Part, machine: dict[str, Any]) -> Outcome | None:
    """Returns the saved outcome of a part, if the same command was finished on the same device, otherwise None."""
    kept = before(folder)
    if kept is None or kept.status != "done" or kept.command != list(part.command):
        return None
    return kept if kept.machine.get("gpu") == machine.get("gpu") else None


def run(part: Part, folder: Path, machine: dict[str, Any]) -> Outcome:
    """Runs a part in its own process group, which is ended at the time limit, and saves its output and outcome."""
    folder.mkdir(parents=True, exist_ok=True)
    command = list(part.command)
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))))
    more = {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "WANDB_MODE": "disabled"}
    began = time.monotonic()
    with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as err:
        process = subprocess.Popen(
            command, stdout=out, stderr=err, cwd=ROOT, env={**os.environ, **more}, start_new_session=True
        )
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
        lines = [line.strip() for line in (folder / "stderr.txt").read_text(errors="replace").splitlines()]
        became, reason = "failed", f"exit status {status}: {' / '.join(list(filter(None, lines))[-3:])[-600:]}"
    elif "not_here" in result:
        became, reason = "not here", str(result["not_here"])
    elif not result:
        became, reason = "failed", "its last line is no JSON object"
    else:
        became, reason = "done", ""
    outcome = Outcome(part.name, command, became, reason, seconds, result, machine)
    with atomic_write(folder / "part.json") as file:
        file.write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="utf-8")
    return outcome


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


# -- the report --------------------------------------------------------------------------------------------------------


def about_machine(dry: bool) -> dict[str, Any]:
    """Returns the device, the versions of libraries and the commit."""
    found: dict[str, Any] = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    if not dry and (about := output(sys.executable, "-c", DEVICE)):
        driver = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
        found |= json.loads(about) | {"driver": driver[:1]}
    commit = output("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    return found | {"commit": commit + (", changed" if output("git", "status", "--porcelain", "-uno") else "")}


def output(*command: str) -> str:
    """Returns the output of a command, or an empty text if the command is missing or fails."""
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return ""


def write(out: Path, parts: Sequence[Part], outcomes: Sequence[Outcome]) -> None:
    """Writes the report and all results. For parts that were not chosen, results of an earlier start are used."""
    now = {outcome.part: outcome for outcome in outcomes}
    known = [found for part in parts if (found := now.get(part.name) or before(out / part.name)) is not None]
    with atomic_write(out / "report.md") as file:
        file.write_text(page(known), encoding="utf-8")
    with atomic_write(out / "results.json") as file:
        file.write_text(json.dumps([asdict(outcome) for outcome in known], indent=1) + "\n", encoding="utf-8")


def page(outcomes: Sequence[Outcome]) -> str:
    rows = [[o.part, o.status, f"{o.seconds:.0f}", headline(o)] for o in outcomes]
    blocks = ["# make gpu", markdown(["part", "status", "s", "what it says"], rows)]
    places = {str(o.machine): o.machine for o in outcomes}.values()
    blocks += [
        "Measured on: " + ", ".join(f"{name} {found}" for name, found in place.items()) + "." for place in places
    ]
    for outcome in outcomes:
        words = ["python", *(word.replace(f"{ROOT}/", "") for word in outcome.command[1:])]
        blocks += [f"## {outcome.part}", f"`{shlex.join(words)}`"]
        if outcome.reason:
            blocks.append(f"{outcome.status.capitalize()}: {outcome.reason}.")
        kind = outcome.result.get("benchmark")
        if "contenders" in outcome.result:
            blocks.append(contenders(outcome.result))
        elif kind == "by_name":
            blocks.append(by_name([outcome.result]))
        if absent := outcome.result.get("absent"):
            blocks.append("Not measured: " + "; ".join(absent.values()) + ".")
    return "\n\n".join(blocks) + "\n"


def headline(outcome: Outcome) -> str:
    """Returns the results of a part in one line."""
    found = outcome.result
    kind = found.get("benchmark")
    if outcome.status in ("failed", "not here") or not kind:
        return outcome.reason
    if kind == "tests":
        return f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped"
    if kind == "by_name":
        return ", ".join(f"{method} {row['seconds']:.0f} s" for method, row in found["methods"].items())
    return ", ".join(f"{key[2:]} {value:.3g}x" for key, value in found.items() if key.startswith("x_") and value)


def contenders(found: dict[str, Any]) -> str:
    """Returns the rows of a benchmark with contenders: time, rate, utilisation, peak memory, difference of gradients."""
    rates, mfu = found.get("tokens_per_second") or {}, found.get("mfu") or {}
    peaks, errors = found.get("peak_bytes") or {}, found.get("grad_errors") or {}
    rows = [
        [
            name,
            f"{one['seconds']:.4g}",
            f"{rates.get(name, one['rate']):,.0f}",
            f"{mfu[name]:.1%}" if mfu.get(name) else "",
            f"{peaks[name] / MIB:,.0f}" if name in peaks else "",
            f"{errors[name]:.2g}" if name in errors else "",
        ]
        for name, one in found["contenders"].items()
    ]
    notes = (
        "The utilisation is the number of operations that the work needs (each token counted once) per second, divided "
    )
    notes += (
        "by the bfloat16 rate of the data sheet. A peak is the largest memory in use minus the memory before the step. "
    )
    notes += "Apart: the largest difference between the peer's gradient and ours, divided by the peer's largest entry."
    return markdown(["", "seconds", "tokens a second", "utilisation", "peak MiB", "apart"], rows) + "\n\n" + notes


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the running part is ended first
    sys.exit(main())
