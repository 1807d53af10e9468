"""Fills the marked tables of docs/performance.md from saved results (``--json`` of the benchmarks).

python benchmarks/report.py outputs/benchmarks/*.json
python benchmarks/report.py outputs/benchmarks/*.json --page docs/performance.md
python benchmarks/report.py outputs/benchmarks/overlap.json          fills the table of docs/scaling.md

Results at a benchmark's own default size on a CPU fill its table. All its other results fill the table of growth, named
by the settings in which they differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from other_pages import ELSEWHERE
from result_tables import Result, machines, table
from turnwise.errors import InputError
from turnwise_study.tables import write_section

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "performance.md"

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
    ("allocate", "optimal", "the optimum is found", "is", 1),
    ("allocate", "root_ms", "milliseconds of a root allocation", "at most", 5),
    ("allocate", "x_dynamic_programme", "the textbook dynamic programme", "at least", 100),
    ("allocate", "million_s", "seconds for a million prompts", "at most", 3),
    ("iteration", "x_trl", "TRL's GRPOTrainer, a whole iteration", "at least", 5),
)
BENCHMARKS = ("rollout", "update", "profiling", "allocate", "iteration")
UNTOLD = {"seed", "threads", "rounds", "tree_rounds"}  # settings that do not distinguish results
OF_TREES = {"roots", "branches", "turns"}  # settings of benchmarks/update.py that only its branching tree has


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 done; 2 a file cannot be used."""
    args = parser().parse_args(arguments)
    try:
        results = [read(path) for path in args.files]
        for name, (page, told) in ELSEWHERE.items():
            if found := [r for r in results if r["benchmark"] == name]:
                write_section(args.page if args.page != PAGE else DOCS / page, told(found), name)
        results = [r for r in results if r["benchmark"] not in ELSEWHERE]
        if not results:
            return 0
        defaults = {name: [r for r in results if r["benchmark"] == name] for name in BENCHMARKS}
        main_results = {name: chosen(found) for name, found in defaults.items() if found}
        write_section(args.page, summary(main_results), "summary")
        for name in BENCHMARKS:
            if name in main_results and "contenders" in main_results[name]:
                write_section(args.page, contenders(main_results[name]), name)
        if "allocate" in main_results:
            write_section(args.page, allocated(main_results["allocate"]), "allocate")
        others = [r for r in results if not any(r is m for m in main_results.values())]
        if others:
            write_section(args.page, growth(others, main_results), "growth")
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{args.page}: {len(results)} results")
    return 0


def read(path: Path) -> Result:
    """Returns the object of one saved last line.

    Raises:
        InputError: the file is missing or is not the result of a benchmark.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}; give files that a benchmark wrote with --json") from error
    if not isinstance(found, dict) or found.get("benchmark") not in (*BENCHMARKS, *ELSEWHERE):
        raise InputError(f"{path}: no result of {', '.join(BENCHMARKS)}; give files that a benchmark wrote with --json")
    return {**found, "file": path.name}


def chosen(results: Sequence[Result]) -> Result:
    """Returns the result that represents its benchmark: the file with its name, else the first result on a CPU."""
    named = [r for r in results if r["file"] == f"{r['benchmark']}.json"]
    on_cpu = [r for r in results if r.get("setting", {}).get("device", "cpu") == "cpu"]
    return (named or on_cpu or list(results))[0]


def summary(results: Mapping[str, Result]) -> str:
    """Returns a table of every ratio and its bound."""
    rows = []
    for name, key, meaning, sense, bound in TARGETS:
        if name not in results:
            continue
        value = results[name].get(key)
        absent = results[name].get("absent", {}).get(key, "not measured")
        rows.append(
            [name, f"`{key}`", meaning, told(value) if value is not None else absent, *verdict(value, sense, bound)]
        )
    return (
        table(["benchmark", "number", "against", "measured", "wanted", ""], rows) + "\n\n" + machines(results.values())
    )


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
    unit = result.get("unit", "units")
    rows = [
        [name, told(c["seconds"]), told(c["rate"]), str(len(c["rounds"])), c.get("note", "")]
        for name, c in result["contenders"].items()
    ]
    lines = [table(["", "seconds", f"{unit} a second", "rounds", ""], rows)]
    if floor := result.get("floor"):
        lines.append(
            f"Floor: {told(floor['seconds'])} s. {floor['bytes'] / 1e9:.2f} GB at {floor['bandwidth'] / 1e9:.1f} GB/s and "
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


def allocated(result: Result) -> str:
    size = f"{result['setting']['prompts']:,} prompts and {result['setting']['budget']:,} rollouts"
    rows = [
        [f"{size}, ours", f"{told(result['root_ms'])} ms"],
        [f"{size}, the textbook dynamic programme", f"{told(result['root_ms'] * result['x_dynamic_programme'])} ms"],
        ["prefixes of one prompt, ours", f"{told(result['prefix_ms'])} ms"],
        ["1,000,000 prompts and 2,000,000 rollouts, ours", f"{told(result['million_s'])} s"],
    ]
    return table(["", "median"], rows) + "\n\n" + machines([result])


def growth(results: Sequence[Result], main_results: Mapping[str, Result]) -> str:
    """Returns one row for each result, named by the settings in which it differs from its benchmark's table."""
    rows = []
    for result in sorted(results, key=lambda r: (BENCHMARKS.index(r["benchmark"]), r["file"])):
        base = main_results[result["benchmark"]].get("setting", {})
        changed = {
            k: v for k, v in result.get("setting", {}).items() if k not in UNTOLD and v is not None and base.get(k) != v
        }
        settings = ", ".join(f"{k.replace('_', '-')} {v}" for k, v in changed.items()) or "repeated"
        keys = [key for name, key, *_ in TARGETS if name == result["benchmark"] and result.get(key) is not None]
        found: dict[str, dict[str, Any]] = result.get("contenders", {})
        of_tree = result["benchmark"] == "update" and changed.keys() <= OF_TREES
        ours = found["tree, turnwise"] if of_tree and changed else next(iter(found.values()), {})
        rows.append(
            [
                result["benchmark"],
                settings,
                told(ours["seconds"]) if ours else "",
                told(ours["rate"]) if ours else "",
                ", ".join(f"`{key}` {told(result[key])}" for key in keys),
            ]
        )
    return table(["benchmark", "setting", "seconds", "units a second", "ratios"], rows) + "\n\n" + machines(results)


def told(value: Any) -> str:
    """Returns a number as text, rounded for a table; a truth value becomes ``yes`` or ``no``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("files", nargs="+", type=Path, help="results saved with --json")
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="the page with the marks (default: docs/performance.md)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
