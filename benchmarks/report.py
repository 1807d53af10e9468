"""Fill the marked tables of docs/performance.md from saved results (``--json`` of the benchmarks).

python benchmarks/report.py outputs/benchmarks/*.json
python benchmarks/report.py outputs/benchmarks/*.json --page docs/performance.md
python benchmarks/report.py outputs/benchmarks/million.json          fills the table of docs/scaling.md
python benchmarks/report.py outputs/benchmarks/spool.json            fills the table of docs/reliability.md

Results at a benchmark's own default size on a CPU fill its table; all others of it fill the table of growth, by what differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise.reports.markdown import write_section

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "performance.md"

# What must be shown: benchmark, its number, how it is to be read, and the bound.
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
UNTOLD = {"seed", "threads", "rounds"}  # settings by which results are not told apart

Result = Mapping[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 2 when a file cannot be used."""
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
        others = [r for r in results if not any(r is m for m in main_results.values())]
        if others:
            write_section(args.page, growth(others, main_results), "growth")
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{args.page}: {len(results)} results")
    return 0


def read(path: Path) -> Result:
    """One saved last line.

    Raises:
        InputError: the file is not there or is no benchmark's result.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}; give files that a benchmark wrote with --json") from error
    if not isinstance(found, dict) or found.get("benchmark") not in (*BENCHMARKS, *ELSEWHERE):
        raise InputError(f"{path}: no result of {', '.join(BENCHMARKS)}; give files that a benchmark wrote with --json")
    return {**found, "file": path.name}


def chosen(results: Sequence[Result]) -> Result:
    """The one that stands for its benchmark: named after it, or else the first on a CPU."""
    named = [r for r in results if r["file"] == f"{r['benchmark']}.json"]
    on_cpu = [r for r in results if r.get("setting", {}).get("device", "cpu") == "cpu"]
    return (named or on_cpu or list(results))[0]


def summary(results: Mapping[str, Result]) -> str:
    """Every ratio beside its bound."""
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
    """What is wanted, and whether it is met."""
    if not sense:
        return "", ""
    wanted = "yes" if sense == "is" else f"{sense} {bound:g}"
    if value is None:
        return wanted, ""
    met = {"at least": value >= bound, "at most": value <= bound, "is": bool(value)}[sense]
    return wanted, "met" if met else "missed"


def contenders(result: Result) -> str:
    """Medians of every contender of one benchmark."""
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
            f"binds; {floor['steps']} decoding steps follow one another."
        )
    if peaks := result.get("peak_bytes"):
        lines.append(
            "Peak memory: " + ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in peaks.items()) + "."
        )
    if reasons := result.get("absent"):
        lines.append("Not measured: " + "; ".join(reasons.values()) + ".")
    return "\n\n".join([*lines, machines([result])])


def growth(results: Sequence[Result], main_results: Mapping[str, Result]) -> str:
    """One row a result, named by the settings in which it differs from its benchmark's table."""
    rows = []
    for result in sorted(results, key=lambda r: (BENCHMARKS.index(r["benchmark"]), r["file"])):
        base = main_results[result["benchmark"]].get("setting", {})
        changed = {
            k: v for k, v in result.get("setting", {}).items() if k not in UNTOLD and v is not None and base.get(k) != v
        }
        settings = ", ".join(f"{k.replace('_', '-')} {v}" for k, v in changed.items()) or "repeated"
        keys = [key for name, key, *_ in TARGETS if name == result["benchmark"] and result.get(key) is not None]
        ours: dict[str, Any] = next(iter(result.get("contenders", {}).values()), {})
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


def million(results: Sequence[Result]) -> str:
    """What trajectories cost that lie on disk, a row for each number of them, ascending."""
    sizes = sorted((row for result in results for row in result["sizes"].values()), key=lambda row: row["trajectories"])
    header = [
        "trajectories",
        "file",
        "read",
        "profile",
        "overhead each",
        "CPU each",
        "peak beyond the start",
        "states kept",
    ]
    rows = [
        [
            f"{row['trajectories']:,}",
            f"{row['file_mb']:,.0f} MiB",
            f"{row['read_seconds']:,.0f} s",
            f"{row['profile_seconds']:,.0f} s",
            f"{row['us_per_trajectory']:,.0f} us",
            f"{row['cpu_us_per_trajectory']:,.0f} us",
            f"{row['peak_mb']:.0f} MiB",
            f"{row['kept']:,} of {row['states']:,}",
        ]
        for row in sizes
    ]
    lines = [table(header, rows)]
    if len(sizes) > 1:
        more = sizes[-1]["trajectories"] - sizes[0]["trajectories"]
        grown = (sizes[-1]["peak_mb"] - sizes[0]["peak_mb"]) * 2**20
        lines.append(f"From the first row to the last the peak grows by {grown / more:,.0f} bytes a trajectory.")
    lines += [
        f"Killed in the middle of {row['trajectories']:,} (kill -9) and started again: {again['read_seconds']:,.0f} s to read "
        f"the file, {again['first_sample_seconds'] - again['read_seconds']:.1f} s from there to the next sample; "
        f"{again['samples']:,} of {row['samples']:,} samples were left to draw."
        for row in sizes
        if (again := row.get("resume"))
    ]
    setting, numbers = results[0]["setting"], " ".join(str(row["trajectories"]) for row in sizes)
    share = 100 * sizes[-1]["cpu_us_per_trajectory"] / sizes[-1]["us_per_trajectory"]
    lines.append(
        f"`python benchmarks/million.py --trajectories {numbers}`: {setting['turns']} turns a trajectory, K = {setting['k']}. "
        f"Before it reads, the process has {sizes[0]['before_mb']:.0f} MiB. Seconds are those of a shared machine, which gave "
        f"the process {share:.0f} % of a core. {machines(results)}"
    )
    return "\n\n".join(lines)


def spool(results: Sequence[Result]) -> str:
    """What keeping a collection's actions costs and saves, of the last result."""
    result = results[-1]
    seconds = result["seconds"]
    rows = [[name, f"{value:.2f}", f"{value / seconds['plain']:.2f}"] for name, value in seconds.items()]
    rows.append(["what keeping its actions costs", f"{result['cost_seconds']:.4f}", f"{result['cost']:.4f}"])
    given = " ".join(f"--{name} {result['setting'][name]}" for name in ("tasks", "group", "horizon", "rounds"))
    lines = [
        table(["collection of the shipped policy", "CPU s", "of the undisturbed one"], rows),
        f"`OMP_NUM_THREADS=1 python benchmarks/spool.py {given}`: the fastest of the rounds, one lane, "
        f"{result['bytes']:,} bytes kept. {machines(results)}",
    ]
    return "\n\n".join(lines)


def overlap(results: Sequence[Result]) -> str:
    """Seconds of an iteration with and without the next one collected beside it, a row for each result and way."""
    names = {"fresh": "0", "ahead": "1"}
    header = ["method", "rollout.staleness", "iteration, s", "collection", "waited for", "update", "faster by"]
    rows, lines = [], []
    for result in results:
        setting = result["setting"]
        for way, seconds in result["seconds"].items():
            shown = [f"{seconds[part]:.2f}" for part in ("iteration", "rollout", "waited", "update")]
            rows.append([setting["method"], names[way], *shown, f"{result['x_fresh']:.2f}" if way == "ahead" else ""])
        fresh = result["seconds"]["fresh"]
        most = fresh["iteration"] / max(fresh["rollout"], fresh["update"])
        given = " ".join(f"--{name} {setting[name]}" for name in ("method", "epochs", "rounds"))
        lines.append(
            f"`python benchmarks/overlap.py {given} --overrides {' '.join(setting['overrides'])}`: medians of rounds, "
            f"alternating. To hide the shorter of collection and update altogether would make it {most:.2f} times as fast; what "
            "is beyond that is the machine's noise."
        )
    return "\n\n".join([table(header, rows), *lines, machines(results)])


ELSEWHERE: Mapping[str, tuple[str, Callable[[Sequence[Result]], str]]] = {
    "million": ("scaling.md", million),
    "spool": ("reliability.md", spool),
    "overlap": ("scaling.md", overlap),
}
"""Benchmark -> the page that holds its table, and what makes it."""


def machines(results: Any) -> str:
    """What the numbers were measured on, each machine once."""
    found = []
    for result in results:
        machine = result.get("machine", {})
        words = f"{machine.get('gpu') or machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('threads')} threads, "
        words += f"torch {machine.get('torch')}"
        if words not in found:
            found.append(words)
    return "Measured on: " + "; ".join(found) + "."


def told(value: Any) -> str:
    """A number to three digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def parser() -> argparse.ArgumentParser:
    """The command line."""
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
