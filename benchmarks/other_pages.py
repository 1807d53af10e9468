"""Creates tables of benchmarks for pages other than docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from result_tables import Result, machines, ratio_or_dash, table


def overlap(results: Sequence[Result]) -> str:
    """Returns a table of the seconds of an iteration, with and without collecting ahead during the update."""
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
            f"`python benchmarks/overlap.py {given} --overrides {' '.join(setting['overrides'])}`: medians over rounds; each "
            "round runs both settings of rollout.staleness. If the shorter of collection and update were hidden "
            "completely, an iteration would be "
            f"{most:.2f} times as fast; a larger measured factor has other causes."
            + (f" Rounds: {', '.join(f'{one:.2f}' for one in rounds)}." if (rounds := result.get("rounds")) else "")
        )
    return "\n\n".join([table(header, rows), *lines, machines(results)])


def same_run(results: Sequence[Result]) -> str:
    """Returns a table of one run with each engine, from the last result."""
    result = results[-1]
    setting, (low, high) = result["setting"], result["apart_ci95"]
    rows = []
    for engine, row in result["engines"].items():
        ends = [f"{end:+.1f}" for end in row["delta_ci95"]]
        sides = [f"{row[side]:.1f} %" for side in ("base", "after")]
        change = f"{row['delta']:+.1f} [{', '.join(ends)}]"
        rows.append(
            [f"`{engine}`", *sides, change, f"{row['tokens']:,}", f"{row['mismatch_max']:.1e}", f"{row['minutes']:.1f}"]
        )
    header = ["engine", "base", "after", "change, points", "tokens drawn", "log-probs apart, at most", "minutes"]
    given = f" --overrides {' '.join(setting['overrides'])}" if setting["overrides"] else ""
    lines = [
        table(header, rows),
        f"After training vLLM's policy is {result['apart']:+.1f} points from the other, 95 % interval [{low:+.1f}, {high:+.1f}] "
        f"over {result['tasks']} held-out tasks, paired.",
        f"`python benchmarks/same_run.py --tasks {setting['tasks']} --seed {setting['seed']}{given}`, scale tiny, one core. "
        f"{machines(results)}",
    ]
    return "\n\n".join(lines)


def by_name(results: Sequence[Result]) -> str:
    """Returns a table of the six methods run by their names. For each method, the last result with it counts."""
    methods = {method: row for result in results for method, row in result["methods"].items()}
    loads = [row["load_before"] for row in methods.values()]
    rows = []
    for method, row in methods.items():
        ends = ", ".join(f"{end:+.1f}" for end in row["delta_ci95"])
        rows.append(
            [
                f"`{method}`",
                *(f"{row[side]:.1f} %" for side in ("base", "after")),
                f"{row['delta']:+.1f} [{ends}]",
                f"{row['tasks']}",
                f"{row['samples']:,.0f}",
                f"{row['seconds']:,.0f}",
                f"{row['cpu_seconds']:,.0f}",
            ]
        )
    header = ["`method=`", "base", "after", "change, points", "tasks", "samples", "seconds", "CPU seconds"]
    lines = [
        table(header, rows),
        f"`python benchmarks/by_name.py --seed {results[-1]['setting']['seed']}`: held-out success, sampled, scale tiny, one "
        f"seed. Samples are those that counted in updates. Other work shared the machine (load average before a run "
        f"{min(loads):.1f} to {max(loads):.1f}). {machines(results)}",
    ]
    return "\n\n".join(lines)


def model_size(results: Sequence[Result]) -> str:
    """Returns a table of the lead over peers, with a row for each size of the model and number format."""
    keys = ("x_generate", "x_continuous", "x_vllm_cpu", "x_padded", "x_per_turn", "floor_ratio")
    rows = [
        [f"{name.replace('m/', ' million, ')}", *(ratio_or_dash(row.get(key)) for key in keys)]
        for result in results
        for name, row in result.items()
        if isinstance(row, Mapping) and "x_padded" in row
    ]
    absent = {k: v for result in results for k, v in result["absent"].items()}
    lines = [table(["parameters, number format", *(f"`{key}`" for key in keys)], rows)]
    lines += [f"Not measured: {name} ({reason})." for name, reason in absent.items()]
    commands = ", ".join(_growth_command(result["setting"]) for result in results)
    lines.append(f"{commands}. {machines(results)}")
    return "\n\n".join(lines)


def _growth_command(setting: Result) -> str:
    sizes, dtypes = " ".join(setting["sizes"]), " ".join(setting["dtypes"])
    return f"`python benchmarks/growth.py --work {setting['work']} --sizes {sizes} --dtypes {dtypes}`"


ELSEWHERE: Mapping[str, tuple[str, Callable[[Sequence[Result]], str]]] = {
    "overlap": ("scaling.md", overlap),
    "same_run": ("engines.md", same_run),
    "by_name": ("methods/README.md", by_name),
    "model_size": ("performance.md", model_size),
}
"""Benchmark -> the page that holds its table, and the function that creates the table."""
