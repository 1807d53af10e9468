"""Creates tables of benchmarks for pages other than docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from result_tables import Result, machines, ratio_or_dash, table


def million(results: Sequence[Result]) -> str:
    """Returns a table of the costs of trajectories on disk, with a row for each number of trajectories, ascending."""
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
    numbers += "".join(f" --resume {row['trajectories']}" for row in sizes if row.get("resume"))
    share = 100 * sizes[-1]["cpu_us_per_trajectory"] / sizes[-1]["us_per_trajectory"]
    lines.append(
        f"`python benchmarks/million.py --trajectories {numbers}`: {setting['turns']} turns a trajectory, K = {setting['k']}. "
        f"Before it reads, the process has {sizes[0]['before_mb']:.0f} MiB. Seconds are those of a shared machine, which gave "
        f"the process {share:.0f} % of a core. {machines(results)}"
    )
    return "\n\n".join(lines)


def spool(results: Sequence[Result]) -> str:
    """Returns a table of the cost of saving a collection's actions and of the time saved, from the last result."""
    result = results[-1]
    seconds = result["seconds"]
    rows = [[name, f"{value:.2f}", f"{value / seconds['plain']:.2f}"] for name, value in seconds.items()]
    rows.append(["what keeping its actions costs", f"{result['cost_seconds']:.4f}", f"{result['cost']:.4f}"])
    given = " ".join(f"--{name} {result['setting'][name]}" for name in ("tasks", "group", "horizon", "rounds"))
    lines = [
        table(["collection of the shipped policy", "CPU s", "of the undisturbed one"], rows),
        f"`OMP_NUM_THREADS=1 python benchmarks/spool.py {given}`: the fastest of the rounds, sampled by one "
        f"process. The file of saved actions has {result['bytes']:,} bytes. {machines(results)}",
    ]
    return "\n\n".join(lines)


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


def gateway(results: Sequence[Result]) -> str:
    """Returns a table of the time that the gateway of env=agent adds to a request, from the last result."""
    result = results[-1]
    rows = [
        [sessions, f"{row['requests']:,}", f"{row['median_ms']:.2f} ms", f"{row['p95_ms']:.2f} ms"]
        for sessions, row in result["sessions"].items()
    ]
    given = " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in result["setting"].items())
    lines = [
        table(["sessions side by side", "requests", "added to a request, median", "95 % below"], rows),
        f"`python benchmarks/gateway.py {given}`: the time of a round trip minus the time that the rollout takes for "
        f"its reply. {machines(results)}",
    ]
    return "\n\n".join(lines)


def waiting(results: Sequence[Result]) -> str:
    """Returns a table of what threads save in environments that wait, from the last result."""
    result = results[-1]
    given = " ".join(f"--{name} {value:g}" for name, value in result["setting"].items())
    threads = result["setting"]["threads"]
    rows = [
        [part, f"{row['seconds']['0']:.1f} s", f"{row['seconds'][str(threads)]:.1f} s", f"{row['x']:.1f}"]
        for part, row in result["parts"].items()
    ]
    lines = [
        table(["part", "one call after the other", f"{threads} threads", "faster by"], rows),
        f"`python benchmarks/waiting.py {given}`: the household, whose resets, steps and verdicts sleep; the results of both "
        f"columns are equal. {machines(results[-1:])}",
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


def probe(results: Sequence[Result]) -> str:
    """Returns a table of the cost of probing a model, with a row for each precision, from the last result."""
    result = results[-1]
    setting, layers = result["setting"], result["whole_layers"]
    header = [
        "weights",
        "CPU, s",
        "wall-clock, s",
        "a further layer, CPU s",
        f"all {layers} passed, extrapolated, CPU s",
    ]
    rows = []
    for name, case in result["cases"].items():
        alike = case["passed_2"]
        seconds = (
            alike["cpu_seconds"],
            alike["wall_seconds"],
            case["cpu_seconds_a_layer"],
            case["cpu_seconds_all_passed"],
        )
        rows.append([name, *(f"{value:.2f}" for value in seconds)])
    rates = ", ".join(f"{value:.0f} in {dtype}" for dtype, value in result["gflop_a_second"].items())
    lines = [
        table(header, rows),
        f"`OMP_NUM_THREADS={result['machine']['threads']} python benchmarks/probe.py --layers {setting['layers']} --rounds "
        f"{setting['rounds']} --seed {setting['seed']}`: {setting['shape']}, random weights, {layers} layers, medians; a further "
        f"layer is the difference between 2 and {setting['layers']} passed. A large "
        f"matrix product reaches, in GFLOP per second of CPU time: {rates}. Other work shared the machine "
        f"(load average {result['machine']['load']:.1f}). {machines(results)}",
    ]
    return "\n\n".join(lines)


def longtail(results: Sequence[Result]) -> str:
    """Returns a table of rollouts with long tails, with a row for each engine, and the simulation's deviation."""
    header = [
        "engine",
        "latency, s",
        "iterations",
        "rounds over free",
        "staleness 0 over 1",
        "over 2",
        "staleness 1 over its bound",
    ]
    header += ["side by side: staleness 0 over 1", "over 2", "1 over its bound"]
    header += ["the gate decides after", "tokens that it saves: free", "free, to the ends of actions", "rounds"]
    rows, commands, apart = [], [], []
    for result in results:
        setting, stale = result["setting"], result["x_staleness"]
        spared = [result[f"{name}_tokens_pct"] for name in ("cancelled", "uncancelled", "between_rounds")]
        rows.append(
            [
                f"`{setting['engine']}`",
                f"{setting['latency']:g}",
                f"{setting['iterations']}",
                f"{result['x_rounds']:.2f}",
            ]
            + [f"{stale['1']:.2f}", f"{stale['2']:.2f}"]
            + [_or_nothing(result["bound_ratio"])]
            + [_or_nothing(result["x_beside"].get(k)) for k in ("1", "2")]
            + [_or_nothing(result["beside_bound_ratio"])]
            + [f"{setting['gate_step']} turns"]
            + ["" if value is None else f"{value:.1f} %" for value in spared]
        )
        commands.append(
            f"`python benchmarks/longtail.py --engine {setting['engine']} --groups {setting['groups']} "
            f"--group {setting['group']} --turns {setting['turns']:g} --horizon {setting['horizon']} "
            f"--latency {setting['latency']:g} --iterations {setting['iterations']} --rounds {setting['rounds']} "
            f"--update {setting['update']:g} --gate-step {setting['gate_step']}`"
        )
        apart += [took["measured_s"] / took["simulated_s"] - 1 for took in result.get("simulated", {}).values()]
    lines = [table(header, rows)]
    if apart:
        lines.append(
            f"The wall-clock time of the stub is {min(apart):.0%} to {max(apart):.0%} above the simulated time of the "
            "same draws."
        )
    return "\n\n".join([*lines, f"{', '.join(commands)}. {machines(results)}"])


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


def _or_nothing(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


ELSEWHERE: Mapping[str, tuple[str, Callable[[Sequence[Result]], str]]] = {
    "million": ("scaling.md", million),
    "spool": ("reliability.md", spool),
    "overlap": ("scaling.md", overlap),
    "same_run": ("engines.md", same_run),
    "longtail": ("scaling.md", longtail),
    "by_name": ("methods/README.md", by_name),
    "probe": ("models.md", probe),
    "gateway": ("agents.md", gateway),
    "waiting": ("environments.md", waiting),
    "model_size": ("performance.md", model_size),
}
"""Benchmark -> the page that holds its table, and the function that creates the table."""
