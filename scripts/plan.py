"""Prints what a run, or every row of a sweep, would need: tokens, memory of a GPU, GPU-hours, and for a sweep the total of
all rows and seeds. No run is started.

python scripts/plan.py sweep=trace_tab1 scale=paper
python scripts/plan.py sweep=awpo_tab2 scale=paper rows=awpo_8b,awpo_4b --gpu h200
python scripts/plan.py method=pivotrl scale=paper --reply 1500

The last line of the output is one JSON object. Lengths come from demonstrations, or from the limits of the configuration.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from turnwise.console import number, sized
from turnwise.programs import options, program

CONF = Path(__file__).resolve().parents[1] / "conf"
JOB_HOURS = 12  # as the jobs of conf/hydra/launcher and scripts/slurm
LENGTHS = {
    "reply": "mean tokens of a reply",
    "opening": "mean tokens before the first turn",
    "observation": "mean tokens of the environment's answer to a turn",
    "episode": "mean turns of an episode of the policy",
}
WIDTH = 100  # of the page, in characters
OF_THE_MODEL = (
    "weights",
    "earlier",
    "gradients",
    "optimiser",
    "copy",
    "predictor",
)  # parts that do not depend on lengths
REMEDIES = {  # largest part of the memory -> what makes it smaller
    "drawing": "lower rollout.states, allocator.group_size or rollout.sampling.max_tokens, or sample with engine=vllm",
    "cache": "lower engine.memory_gb or rollout.max_length",
    "activations": "set update.recompute=true, or lower update.batch_tokens",
}


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 planned; 2 the arguments cannot be used."""
    parser = options(__doc__)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="overrides as for train.py")
    parser.add_argument("--gpu", default="h100", choices=("a100", "h100", "h200", "b200"))
    for name, meaning in LENGTHS.items():
        parser.add_argument(f"--{name}", type=number(0.001, 1e7), metavar="N", help=meaning)
    args = parser.parse_intermixed_args(arguments)

    from turnwise.config.overrides import is_sweep

    swept = is_sweep(args.overrides)
    rows, cannot, runs = of_sweep(args.overrides) if swept else ({"run": args.overrides}, {}, {"run": 1})

    if not swept:
        checked(args.overrides)  # so that a misspelt key is answered before torch is imported
    from turnwise_study.planning import GPUS, plan
    from turnwise_study.tables import Table, show

    gpu, given = GPUS[args.gpu], {name: getattr(args, name) for name in LENGTHS}
    plans = {name: plan(checked(overrides), gpu, given) for name, overrides in rows.items()}
    whole = {name: asdict(one) for name, one in plans.items()}
    tables = []
    for part, title, unit in (
        ("tokens", "tokens", 1),
        ("memory", f"GB on a GPU ({args.gpu}: {gpu.memory_gb:g} GB)", 1e9),
        ("gpu_hours", "GPU-hours", 1),
    ):
        heads = next((list(one[part]) for one in whole.values() if one[part]), [])
        cells = [
            [name, *(figure(one[part][head] / unit) for head in heads if one[part])] for name, one in whole.items()
        ]
        tables.append(Table(title, ["row", *heads], cells))
    cells, total = [], 0.0
    for name, one in plans.items():
        if one.gpu_hours:  # a run's own time is that of its GPUs side by side
            hours, every = one.gpu_hours["total"] / one.gpus, runs[name] * one.gpu_hours["total"]
            jobs = ceil(hours / JOB_HOURS)
            cells.append([name, f"{runs[name]}", f"{one.gpus}", figure(hours), f"{jobs}", figure(every)])
            total += every
    count = sum(runs[cell[0]] for cell in cells)
    title = f"all runs ({count}): about {figure(total)} GPU-hours on {args.gpu}, computed and not measured"
    heads = ["row", "runs", "GPUs of_a run", "hours of_a run", f"jobs of_{JOB_HOURS} h each", "GPU-hours_of all runs"]
    show([part for table in [*tables, Table(title, heads, cells)] for part in narrow(table)], sized(WIDTH))
    for name, one in plans.items():
        source = "measured on demonstrations" if one.lengths.measured else "at most what the configuration allows"
        print(f"{name}: lengths that are not given are {source}")
        if one.unknown or name in cannot:
            print(f"{name}: {one.unknown or cannot[name]}")
        if one.memory and one.memory["peak"] > gpu.memory_gb * 1e9:
            print(f"{name}: does not fit; {remedy(one.memory, gpu.memory_gb * 1e9)}")
    print(json.dumps({"command": args.overrides, "gpu": args.gpu, "cannot": cannot, "runs": runs, "rows": whole}))
    return 0


def remedy(memory: Mapping[str, float], most: float) -> str:
    model = sum(memory[part] for part in OF_THE_MODEL)
    if model > most:
        return (
            f"the weights and what belongs to them need {figure(model / 1e9)} GB before anything is sampled: set "
            "policy.dtype=bfloat16 (as trainer=gpu does), shard them over more GPUs (trainer=fsdp), or take a smaller model"
        )
    largest = max(set(memory) - {"peak", *OF_THE_MODEL}, key=memory.__getitem__)
    return f"beside the weights, the largest part is {largest}: {REMEDIES.get(largest, 'take a larger GPU')}"


def narrow(table: Any) -> Iterator[Any]:
    """The columns that have a value other than 0, as tables that fit on the page with headings of several lines."""
    heads = [head.replace("_", "\n") for head in table.headers]
    cells = [[*row, *[""] * (len(heads) - len(row))] for row in table.rows]
    widths = [max(map(len, "\n".join(column).splitlines())) + 3 for column in zip(heads, *cells, strict=True)]
    left, part = [i for i in range(1, len(heads)) if any(row[i] not in ("0", "") for row in cells)], 0
    while left:
        fitting = [n for n in range(1, len(left) + 1) if sum(widths[i] for i in (0, *left[:n])) <= WIDTH - 4]
        columns, left = [0, *left[: max(fitting, default=1)]], left[max(fitting, default=1) :]
        part += 1
        title = f"{table.title} ({part})" if left or part > 1 else table.title
        yield type(table)(title, [heads[i] for i in columns], [[row[i] for i in columns] for row in cells])


def figure(number: float) -> str:
    return f"{number / 1e6:,.1f}M" if number >= 1e6 else f"{number:,.0f}" if number >= 1e3 else f"{number:.4g}"


def of_sweep(arguments: Sequence[str]) -> tuple[dict[str, Sequence[str]], dict[str, str], dict[str, int]]:
    """Returns row -> overrides of its runs, without the weights of another run; row -> why it cannot run yet; and row ->
    number of its runs.
    """
    from turnwise_study.sweeps.jobs import jobs, read_sweep_request, request_of_runs

    request = request_of_runs(read_sweep_request(arguments, CONF))
    found = jobs(request)
    first = {job.row: job for job in reversed(found)}
    overrides: dict[str, Sequence[str]] = {
        row: [item for item in job.overrides if item != job.begin]
        for row, job in first.items()
        if request.sweep.rows[row].overrides or request.sweep.rows[row].same
    }
    return overrides, {row: job.cannot for row, job in first.items() if job.cannot}, Counter(job.row for job in found)


def checked(overrides: Sequence[str]) -> Any:
    from turnwise.config.check import check_config
    from turnwise.config.machine import missing_files
    from turnwise.config.overrides import composed

    cfg = composed(overrides, CONF)
    check_config(cfg)
    for mistake in missing_files(cfg):  # a plan may be made without the data
        warn(mistake)
    return cfg


@cache
def warn(mistake: str) -> None:
    print(f"warning: {mistake}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
