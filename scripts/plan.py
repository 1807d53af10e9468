"""Prints what a run, or every row of a sweep, would take: memory, tokens, FLOPs, GPU-hours, and what is missing. Nothing is run.

python scripts/plan.py sweep=trace_tab1 scale=paper
python scripts/plan.py sweep=awpo_tab2 scale=paper rows=awpo_8b,awpo_4b --gpu h200
python scripts/plan.py method=pivotrl scale=paper --reply 1500 --utilisation 0.3

The last line is one JSON object. Lengths are read from demonstrations where the world or data.file has them; else they are
limits of the configuration, and the table says which. What is missing names its step in docs/cluster.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.check import check_config
from turnwise.config.hydra_errors import explain
from turnwise.config.schema import ConfigError, compose_config
from turnwise.console import number, sized
from turnwise.errors import InputError
from turnwise.experiments.arguments import is_sweep
from turnwise.experiments.jobs import ask, jobs, played
from turnwise.planning.hours import GPUS, Gpu
from turnwise.planning.plan import RunPlan, plan
from turnwise.planning.tables import notes, plan_tables
from turnwise.reports.tables import to_rich

CONF = Path(__file__).resolve().parents[1] / "conf"
LENGTHS = {
    "reply": "of a reply",
    "opening": "before the first turn",
    "observation": "of the world's answer to a turn",
    "episode": "(turns, not tokens) of an episode of the policy",
}


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 planned, whatever is missing; 2 when the command line or the configuration cannot be used."""
    args = parser().parse_args(arguments)
    console = sized(180)
    try:
        gpu = gpu_of(args)
        given = {name: getattr(args, name) for name in LENGTHS}
        if is_sweep(args.overrides):
            title, plans, record = of_sweep(args.overrides, gpu, given)
        else:
            title = " ".join(args.overrides)
            plans, record = {"run": plan(composed(args.overrides), gpu, given)}, {}
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    for table in plan_tables(title, plans, gpu):
        console.print(to_rich(table))
    console.print(*notes(plans, gpu, record.get("cannot", {})), sep="\n")
    rows = {name: one.record() for name, one in plans.items()}
    print(json.dumps({"command": args.overrides, "gpu": vars_of(gpu), **record, "rows": rows}))
    return 0


def of_sweep(
    arguments: Sequence[str], gpu: Gpu, given: dict[str, float | None]
) -> tuple[str, dict[str, RunPlan], dict[str, Any]]:
    """Returns (title, plan of each row, notes). A row that cannot run is planned too, if its configuration composes."""
    asked = played(ask(arguments, CONF))
    found = jobs(asked)
    first = {job.row: job for job in reversed(found)}
    plans: dict[str, RunPlan] = {}
    cannot = {row: job.cannot for row, job in first.items() if job.cannot}
    mistakes: list[str] = []
    for row in dict.fromkeys(job.row for job in found):
        job = first[row]
        if asked.sweep.rows[row].overrides is None and asked.sweep.rows[row].same is None:
            continue  # the paper's alone
        alike = [item for item in job.overrides if item != job.begin]  # weights of another run, in the same shapes
        try:
            plans[row] = plan(composed(alike), gpu, given)
        except ConfigError as error:
            mistakes += [f"row {row}: {mistake}" for mistake in error.mistakes]
    if mistakes:
        raise ConfigError(mistakes)
    seeds = len({job.seed for job in found})
    hours = [one.work.gpu_hours["total"] for one in plans.values() if one.work]
    record = {
        "sweep": asked.sweep.name,
        "scale": asked.scale,
        "seeds": seeds,
        "cannot": cannot,
        "gpu_hours": seeds * sum(hours),
    }
    return f"{asked.sweep.name}: {asked.sweep.title}, scale {asked.scale}", plans, record


def composed(overrides: Sequence[str]) -> Any:
    """The checked configuration.

    Raises:
        ConfigError: with every mistake found.
    """
    try:
        cfg = compose_config(overrides, CONF)
        check_config(cfg)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, overrides, CONF) from error
    return cfg


def gpu_of(args: argparse.Namespace) -> Gpu:
    """The GPU that is asked for.

    Raises:
        InputError: a number out of range.
    """
    memory, peak, bandwidth = GPUS[args.gpu]
    try:
        return Gpu(
            args.gpu,
            args.memory or memory,
            args.peak or peak,
            args.bandwidth or bandwidth,
            args.utilisation,
            args.bandwidth_utilisation,
        )
    except ValueError as error:
        raise InputError(f"--{str(error).replace('_tflops', '').replace('_gb', '').replace('_tb_s', '')}") from None


def vars_of(gpu: Gpu) -> dict[str, Any]:
    """The fields of a GPU."""
    return {name: getattr(gpu, name) for name in gpu.__slots__}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "overrides",
        nargs="+",
        metavar="KEY=VALUE",
        help="as of train.py: sweep=NAME [scale=paper] [rows=...], or a run's",
    )
    add("--gpu", choices=sorted(GPUS), default="h100")
    add("--memory", type=number(0.1, 1e5), metavar="GB", help="of the GPU, in 10^9 bytes, instead of its data sheet's")
    add("--peak", type=number(0.1, 1e6), metavar="TFLOPS", help="dense bfloat16, instead of its data sheet's")
    add("--bandwidth", type=number(0.001, 1e4), metavar="TB/S", help="of its memory, instead of its data sheet's")
    add("--utilisation", type=float, default=0.35, metavar="SHARE", help="of the peak (%(default)s)")
    add(
        "--bandwidth-utilisation",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="while replies are written (%(default)s)",
    )
    for name, what in LENGTHS.items():
        add(
            f"--{name}",
            type=number(1, 1e7),
            metavar="N",
            help=f"mean tokens {what}" if "turns" not in what else f"mean {what}",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
