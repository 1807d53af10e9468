"""Writes the page of `make gpu`: the measurements of every part, the machine, and the command."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu_parts import Outcome
from result_tables import table

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("torch", "transformers", "trl", "peft", "lightning", "triton", "kernels")
MIB = 2**20
# It runs in a process of its own, so that the process that starts the parts uses no device memory
DEVICE = """
import json, torch
if torch.cuda.is_available():
    about = torch.cuda.get_device_properties(0)
    named = {"gpu": about.name, "gpus": torch.cuda.device_count(), "gpu_gb": round(about.total_memory / 1e9, 1)}
    print(json.dumps({**named, "cuda": torch.version.cuda}))
"""


def told_machine(dry: bool) -> dict[str, Any]:
    """Returns the device, the versions of libraries and the commit."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if not dry and (about := said(sys.executable, "-c", DEVICE)):
        found |= json.loads(about)
        found["driver"] = said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()[:1]
    commit = said("git", "rev-parse", "--short=12", "HEAD")
    found["commit"] = (
        f"{commit}, changed" if commit and said("git", "status", "--porcelain", "-uno") else commit or "unknown"
    )
    return found


def said(*command: str) -> str:
    """Returns the output of a command, or an empty text if the command is missing or fails."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def page(outcomes: Sequence[Outcome]) -> str:
    rows = [[o.part, o.status, f"{o.seconds:.0f}", headline(o)] for o in outcomes]
    blocks = ["# make gpu", table(["part", "status", "s", "what it says"], rows)]
    machines = {str(o.machine): o.machine for o in outcomes}.values()
    blocks += [
        "Measured on: " + ", ".join(f"{name} {worded(found)}" for name, found in m.items()) + "." for m in machines
    ]
    for outcome in outcomes:
        blocks += [f"## {outcome.part}", f"`{shlex.join(shortened(outcome.command))}`"]
        if outcome.reason:
            blocks.append(f"{outcome.status.capitalize()}: {outcome.reason}.")
        tell = SECTIONS.get(str(outcome.result.get("benchmark")))
        if tell and "not_here" not in outcome.result:
            blocks.append(tell(outcome.result))
        if absent := outcome.result.get("absent"):
            blocks.append("Not measured: " + "; ".join(absent.values()) + ".")
    return "\n\n".join(blocks) + "\n"


def shortened(command: Sequence[str]) -> list[str]:
    """Returns a command as a user types it in the repository's folder."""
    return ["python", *(word.replace(f"{ROOT}/", "") for word in command[1:])]


def headline(outcome: Outcome) -> str:
    """Returns the results of a part in one line."""
    if outcome.status in ("failed", "not here"):
        return outcome.reason
    found = outcome.result
    kind = found.get("benchmark")
    if kind == "tests":
        return f"{found['passed']} passed, {found['failed'] + found['errors']} failed, {found['skipped']} skipped"
    if kind == "attention":
        return f"{from_where(found)}; in use {found['threshold_in_use']}"
    if kind in ("update", "rollout"):
        names = [name for name in found if name.startswith("x_") and found[name] is not None]
        return ", ".join(f"{name.removeprefix('x_')} {found[name]:.3g}x" for name in names)
    if kind == "recompute":
        return ", ".join(f"{mode} {size / MIB:,.0f} MiB" for mode, size in found["peak_bytes"].items())
    if kind == "row":
        each = found["rollout_seconds"] + found["update_seconds"]
        return f"{found['iterations']} of {found['asked']} iterations, {each:.3g} s each, engine {found['engine']}"
    return outcome.reason


def contenders(found: dict[str, Any]) -> str:
    """Returns the rows of a benchmark with contenders: time, rate, utilisation, peak memory."""
    rates, mfu = found.get("tokens_per_second"), found.get("mfu") or {}
    peaks = found.get("peak_bytes") or {}
    errors: dict[str, float] = found.get("grad_errors") or {}
    rows = []
    for name, one in found["contenders"].items():
        rate = rates[name] if rates else one["rate"]
        apart = f"{errors[name]:.2g}" if name in errors else ""
        cells = [f"{one['seconds']:.4g}", f"{rate:,.0f}", share(mfu.get(name)), mib(peaks.get(name))]
        rows.append([name, *cells, apart])
    notes = "The utilisation is the number of operations that the work needs (each token counted once) per second, "
    notes += "divided by the bfloat16 rate of the data sheet. A peak is the largest memory in use minus the memory "
    notes += "before the step."
    if errors:
        notes += " Apart: the largest difference between the peer's gradient and ours, divided by the largest entry of "
        notes += "the peer's gradient."
    header = ["", "seconds", "tokens a second", "utilisation", "peak MiB", "apart"]
    return "\n\n".join([table(header, rows), notes])


def plans(found: dict[str, Any]) -> str:
    """Returns milliseconds and MiB of every attention plan for each length and tree."""
    names = [
        name for name in ("dense", "blocks", "gathered", "unsloth", "runs") if any(name in row for row in found["rows"])
    ]

    def cells(row: dict[str, Any], key: str) -> list[str]:
        values = [row.get(name, {}) for name in names]
        return [f"{v[key]:,.4g}" if v.get(key) is not None else "failed" if "failed" in v else "" for v in values]

    rows = [[row["tree"], f"{row['length']:,}", *cells(row, "ms"), *cells(row, "mib")] for row in found["rows"]]
    header = ["tree", "tokens", *(f"{name}, ms" for name in names), *(f"{name}, MiB" for name in names)]
    worst = max(
        (v["apart"] for row in found["rows"] for v in row.values() if isinstance(v, dict) and v.get("apart")), default=0
    )
    shortest = found["threshold"]
    told = (
        f"Block-wise attention is no slower than attention with a dense mask for rows of {shortest:,} tokens or more"
        if shortest
        else "No threshold was found"
    )
    told += (
        f". When this was measured, runs used block-wise attention for rows of {found['threshold_in_use']:,} tokens "
        "or more (`models/logprobs.py`). "
    )
    told += f"The outputs differ from those with a dense mask by {worst:.2g} at most."
    return "\n\n".join([table(header, rows), told])


def from_where(found: dict[str, Any]) -> str:
    """Returns a sentence that says from which length block-wise attention is no slower than a dense mask."""
    if found["threshold"] is None:
        return "blocks are slower than a dense mask at the longest rows, or not measured"
    return f"blocks are no slower than a dense mask from {found['threshold']:,} tokens on"


def row_of_paper(found: dict[str, Any]) -> str:
    """Returns the measurements of one row of a paper, and everything in which the row was changed."""
    keys = (
        "iterations",
        "rollout_seconds",
        "update_seconds",
        "tokens",
        "stored_tokens",
        "mismatch_max",
        "halvings",
        "devices",
    )
    rows = [[key, worded(found.get(key))] for key in keys]
    rows += [["MiB of the device in use, all processes", mib(found.get("device_bytes"))]]
    rows += [["MiB planned for the training process", mib(found.get("planned_bytes"))]]
    changed = ", ".join(f"`{item.replace(f'{ROOT}/', '')}`" for item in found["changed"])
    title = f"`sweep={found['sweep']} rows={found['row']} scale=paper`, engine {found['engine']}"
    return "\n\n".join([title, table(["", "median or last"], rows), f"Changed: {changed}."])


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "update": contenders,
    "rollout": contenders,
    "recompute": contenders,
    "attention": plans,
    "row": row_of_paper,
}


def mib(size: float | None) -> str:
    return "" if size is None else f"{size / MIB:,.0f}"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def worded(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else f"{value:,.4g}" if isinstance(value, float) else str(value)
