"""Prints what a run, or every row of a sweep, would need: memory, tokens, FLOPs, GPU-hours, and what is missing.

python scripts/plan.py sweep=trace_tab1 scale=paper
python scripts/plan.py sweep=awpo_tab2 scale=paper rows=awpo_8b,awpo_4b --gpu h200
python scripts/plan.py method=pivotrl scale=paper --reply 1500 --utilisation 0.3
python scripts/plan.py method=selective scale=paper --simulate --assume latency=5 sampling_gpus=24
python scripts/plan.py sweep=pivotrl_tab4 power=0.8

No run is started. The last line of the output is one JSON object. Lengths are taken from demonstrations if the
environment or data.file has some, and otherwise from the limits of the configuration; the table states the source. For
everything that is missing, the output names the step in docs/cluster.md.

--simulate simulates the collections and updates of each row under each schedule and staleness (docs/scaling.md). With
power=0.8 the program prints instead how many seeds and tasks each claim of the sweep needs. These numbers follow from
the spread of the sweep's runs (outputs/, results/).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.console import number, sized
from turnwise.errors import InputError, refuse_twice
from turnwise.files import atomic_write
from turnwise.planning.gpus import GPUS, Gpu
from turnwise.programs import options, program

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from turnwise.planning.simulation_assumptions import Given

CONF = Path(__file__).resolve().parents[1] / "conf"
LENGTHS = {
    "reply": "of a reply",
    "opening": "before the first turn",
    "observation": "of the environment's answer to a turn",
    "episode": "length (in turns, not tokens) of an episode of the policy",
}


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 planned, even if something is missing; 2 the arguments cannot be used.

    Slow libraries are imported after the arguments have been parsed.
    """
    args = parser().parse_intermixed_args(arguments)
    console = sized(180)
    if any(word.startswith("power=") for word in args.overrides):
        return of_power(args.overrides)
    from turnwise.config.overrides import is_sweep
    from turnwise.planning.busy_figure import busy
    from turnwise.planning.plan import plan
    from turnwise.planning.plan_tables import notes, plan_tables, resting, simulated_table
    from turnwise.planning.simulation import simulated
    from turnwise.reports.svg import standalone
    from turnwise.reports.tables import to_rich

    gpu, assume = gpu_of(args), assumed_of(args)
    given = {name: getattr(args, name) for name in LENGTHS}
    if is_sweep(args.overrides):
        title, configs, record = of_sweep(args.overrides)
    else:
        title, configs, record = " ".join(args.overrides), {"run": composed(args.overrides)}, {}
    plans = {name: plan(cfg, gpu, given) for name, cfg in configs.items()}
    if args.picture and len(configs) > 1:
        raise InputError(
            f"--picture: only one row can be shown, but there are {', '.join(configs)}; choose one with rows="
        )
    simulations = simulated(configs, plans, gpu, assume) if args.simulate else {}
    if args.picture:
        for name, simulation in simulations.items():
            row = f"{title}, {name}" if record else title
            with atomic_write(args.picture) as part:
                part.write_text(standalone(busy(row, simulation)), encoding="utf-8")
    for table in plan_tables(title, plans, gpu):
        console.print(to_rich(table))
    console.print(*notes(plans, record.get("cannot", {})), sep="\n")
    for name, simulation in simulations.items():
        console.print(to_rich(simulated_table(name, simulation)))
        console.print(*resting(name, simulation.assumed), sep="\n")
    rows = {name: one.record() for name, one in plans.items()}
    for name, simulation in simulations.items():
        rows[name]["simulated"] = simulation.record()
    seeds = record.get("seeds")
    hours = (
        {"gpu_hours": seeds * sum(one.work.gpu_hours["total"] for one in plans.values() if one.work)} if seeds else {}
    )
    print(json.dumps({"command": args.overrides, "gpu": asdict(gpu), **record, **hours, "rows": rows}))
    return 0


def of_sweep(arguments: Sequence[str]) -> tuple[str, dict[str, DictConfig], dict[str, Any]]:
    """Returns the title, the configuration of each row, and notes for the last output line.

    A row that cannot run also has a configuration, if Hydra can compose it.
    """
    from turnwise.config.schema import ConfigError
    from turnwise.experiments.command_line import ask, played
    from turnwise.experiments.jobs import jobs

    asked = played(ask(arguments, CONF))
    found = jobs(asked)
    first = {job.row: job for job in reversed(found)}
    configs: dict[str, DictConfig] = {}
    mistakes: list[str] = []
    for row in dict.fromkeys(job.row for job in found):
        job = first[row]
        if asked.sweep.rows[row].overrides is None and asked.sweep.rows[row].same is None:
            continue  # the paper reports this row, but the sweep cannot run it
        # without the initial weights of another run, which have the shapes of the base model
        alike = [item for item in job.overrides if item != job.begin]
        try:
            configs[row] = composed(alike)
        except ConfigError as error:
            mistakes += [f"row {row}: {mistake}" for mistake in error.mistakes]
    if mistakes:
        raise ConfigError(mistakes)
    record = {
        "sweep": asked.sweep.name,
        "scale": asked.scale,
        "seeds": len(asked.seeds or asked.sweep.seeds),
        "cannot": {row: job.cannot for row, job in first.items() if job.cannot},
    }
    return f"{asked.sweep.name}: {asked.sweep.title}, scale {asked.scale}", configs, record


def of_power(arguments: Sequence[str]) -> int:
    """Prints how many seeds and tasks are needed to decide each claim of a sweep.

    Raises:
        InputError: the power is not a share, there is no sweep, or there is no folder of runs.
    """
    from turnwise.config.overrides import is_sweep
    from turnwise.experiments.command_line import ask
    from turnwise.reports.arguments import read_words
    from turnwise.reports.entries import read_entry
    from turnwise.reports.power import power_json, power_table
    from turnwise.reports.tables import to_rich

    refuse_twice(arguments)
    text = next(word for word in arguments if word.startswith("power=")).partition("=")[2]
    words = read_words([word for word in arguments if not word.startswith("power=")], CONF.parent)
    try:
        power = float(text)
    except ValueError:
        power = 0.0
    if not 0 < power < 1 or not is_sweep(words.rest):
        raise InputError(
            f"power={text}: give a number between 0 and 1, and the sweep whose claims are meant: sweep=NAME power=0.8"
        )
    entry = read_entry(ask(words.rest, CONF), words.places)
    table = power_table(entry.asked.sweep.title, entry.decisions, power)
    sized(180).print(to_rich(table), *table.notes, sep="\n")
    claims = [power_json(decision, power) for decision in entry.decisions]
    print(json.dumps({"sweep": entry.asked.sweep.name, "scale": entry.asked.scale, "power": power, "claims": claims}))
    return 0


def composed(overrides: Sequence[str]) -> Any:
    """Returns the configuration of a run.

    Raises:
        ConfigError: the configuration has mistakes; the error contains all of them.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from turnwise.config.check import check_config
    from turnwise.config.overrides import explain
    from turnwise.config.schema import compose_config

    try:
        cfg = compose_config(overrides, CONF)
        check_config(cfg)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, overrides, CONF) from error
    return cfg


def gpu_of(args: argparse.Namespace) -> Gpu:
    """Returns the GPU that the options describe. Raises InputError if a number is out of range."""
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


def assumed_of(args: argparse.Namespace) -> Given:
    """Returns the assumptions given with ``--assume``.

    Raises:
        InputError: an assumption cannot be parsed, or ``--simulate`` is not given.
    """
    if (args.assume or args.picture) and not args.simulate:
        raise InputError("--assume and --picture: these options only apply to a simulation; add --simulate")
    from turnwise.planning.simulation_assumptions import parsed

    try:
        return parsed(args.assume)
    except ValueError as error:
        raise InputError(f"--assume {error}") from None


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add(
        "overrides",
        nargs="+",
        metavar="KEY=VALUE",
        help="overrides as for train.py: sweep=NAME [scale=paper] [rows=...], or the overrides of one run; power=SHARE prints "
        "the number of seeds and tasks that each claim needs",
    )
    add("--gpu", choices=sorted(GPUS), default="h100")
    add(
        "--memory",
        type=number(0.1, 1e5),
        metavar="GB",
        help="memory of the GPU in 10^9 bytes (default: from its data sheet)",
    )
    add(
        "--peak",
        type=number(0.1, 1e6),
        metavar="TFLOPS",
        help="peak throughput, dense bfloat16 (default: from its data sheet)",
    )
    add("--bandwidth", type=number(0.001, 1e4), metavar="TB/S", help="memory bandwidth (default: from its data sheet)")
    add(
        "--utilisation",
        type=float,
        default=0.35,
        metavar="SHARE",
        help="share of the peak throughput that is achieved (%(default)s)",
    )
    add(
        "--bandwidth-utilisation",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="share of the memory bandwidth that decoding achieves (%(default)s)",
    )
    add("--simulate", action="store_true", help="also simulate each row under each schedule and staleness")
    add(
        "--assume",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="assumptions of the simulation; the simulation prints all its assumptions",
    )
    add(
        "--picture",
        type=Path,
        metavar="FILE.svg",
        help="plot the number of busy GPUs of one simulated row over time",
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
