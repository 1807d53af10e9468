"""Parses the command line of a sweep, and lists its runs, each with its row, seed, overrides and folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from turnwise.config.schema import run_name
from turnwise.console import HELD
from turnwise.errors import InputError, refuse_twice
from turnwise_study.sweeps.sweep_file import SCALES, Scale, Sweep, find_sweep, sweep_row_origin


def for_hydra(arguments: Sequence[str], folder: Path) -> list[str]:
    """The arguments to pass to Hydra for a sweep: its own, and all others packed into one argument of the sweeper.
    Before the first row, Hydra composes a configuration without a row, in which overrides of keys that only some methods
    have would be refused.
    """
    hydras = [a for a in arguments if a.startswith(("hydra/", "hydra.", "-")) and a != "--dry-run"]
    own = [a for a in arguments if a not in hydras]
    read_sweep_request(own, folder)
    return [
        "--multirun",
        *(a for a in hydras if a not in ("-m", "--multirun")),
        "hydra/sweeper=rows",
        f"{HELD}{','.join(map(_quoted, own))}]",
        f"hydra.sweeper.folder={_quoted(str(folder))}",
    ]


def _quoted(text: str) -> str:
    """Quotes ``text`` for Hydra's grammar. ``${...}`` is escaped, so that it is resolved for each row."""
    escaped = text.replace("'", "\\'").replace("${", "\\${")
    return f"'{escaped}'"


def read_sweep_request(arguments: Sequence[str], folder: Path) -> SweepRequest:
    """Parses ``sweep=NAME [scale=tiny|paper] [rows=a,b] [seed=0,1] [pilots=true] [--dry-run] [key=value ...]``."""
    refuse_twice(arguments)
    options: dict[str, str] = {"scale": "tiny", "pilots": "false"}
    extra = []
    for argument in (one for one in arguments if one != "--dry-run"):
        key, sign, value = argument.partition("=")
        if key in ("sweep", "scale", "rows", "seed", "pilots"):
            options[key] = value
        elif not sign and not key.startswith("~"):
            raise InputError(f"{argument}: this argument is not of the form key=value")
        elif key in ("name", "paths.out", "check"):
            what = "--dry-run checks a sweep" if key == "check" else "a sweep sets the names and folders of its runs"
            raise InputError(f"{argument}: {what}; leave out this argument")
        elif re.search(r"^(choice|range|interval|glob)\(|^[^\[{'\"(]*,", value):
            raise InputError(
                f"{argument}: a sweep takes one value for each key; `train.py -m` without sweep= takes several"
            )
        else:
            extra.append(argument)
    scale: Any = options["scale"]
    if scale not in SCALES:
        raise InputError(f"scale={scale}: the scale of a sweep must be {' or '.join(SCALES)}")
    pilots = options["pilots"].lower()
    if pilots not in ("true", "false") or (pilots == "true" and "seed" in options):
        raise InputError(f"pilots={pilots}: give true or false; with true leave out seed=, which the sweep file sets")
    request = SweepRequest(
        find_sweep(options.get("sweep", ""), folder).of_scale(scale),
        folder,
        scale,
        tuple(options["rows"].split(",")) if options.get("rows") else None,
        seeds_of(options["seed"]) if "seed" in options else None,
        tuple(extra),
        "--dry-run" in arguments,
    )
    return pilot_request(request) if pilots == "true" else request


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The parsed command line of a sweep."""

    sweep: Sweep
    folder: Path  # conf/
    scale: Scale = "tiny"
    rows: tuple[str, ...] | None = None  # None: all rows
    seeds: tuple[int, ...] | None = None  # None: the sweep's seeds
    extra: tuple[str, ...] = ()  # overrides, which every row gets that accepts them
    dry: bool = False
    pilot: tuple[str, ...] = ()  # overrides of pilot runs (:func:`pilot_request`); empty: no pilot runs

    @property
    def fresh(self) -> bool:
        return "fresh=true" in (item.lower() for item in self.extra)


def request_of_runs(request: SweepRequest) -> SweepRequest:
    """The request for the runs that a sweep shows: its own runs, or those of the sweep in ``gate_report``."""
    source = request.sweep.gate_report
    return (
        request
        if source in (None, request.sweep.name)
        else replace(request, sweep=find_sweep(source, request.folder), rows=None)
    )


def pilot_request(request: SweepRequest) -> SweepRequest:
    """The request for the pilot runs of a sweep: of the rows that preconditions name, and of the rows from whose
    weights these start, with names that begin with ``pilot/``, and on the tasks of ``eval.seed=0``, because settings
    may be chosen by their results.
    """
    sweep = request.sweep
    rows = [
        one.row
        for one in sweep.preconditions.values()
        if one.same is None and not one.of_runs and one.row in (request.rows or sweep.rows)
    ]
    if sweep.pilots is None or not rows:
        shared = {one.same.partition("/")[0] for one in sweep.preconditions.values() if one.same}
        owners = f"; those of {', '.join(sorted(shared))} measure its preconditions" if shared else ""
        raise InputError(f"pilots=true: {sweep.name} has no pilot runs of its own{owners}")
    if sweep.start_seed is None:
        for row in rows:  # the list grows in the loop, because the row that is added may itself start from another row
            begins = sweep.rows[row].begins(request.scale)
            rows += [begins] if begins is not None and begins not in rows else []
    return replace(
        request,
        rows=tuple(dict.fromkeys(reversed(rows))),
        seeds=sweep.pilots.seeds,
        pilot=(*sweep.pilots.overrides, "eval.seed=0"),
    )


def requested_rows(request: SweepRequest) -> tuple[str, ...]:
    sweep = request.sweep
    rows = request.rows or tuple(sweep.rows)
    for row in rows:
        if row not in sweep.rows:
            near = get_close_matches(row, sweep.rows, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"the rows are {', '.join(sweep.rows)}"
            raise InputError(f"rows={row}: {sweep.name} has no row {row!r}; {hint}")
    return rows


def seeds_of(text: str) -> tuple[int, ...]:
    """Parses seeds such as ``0,1,2``."""
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"seed={text}: give a comma-separated list of whole numbers") from None
    if min(seeds) < 0:
        raise InputError(f"seed={text}: a seed must be at least 0, got {min(seeds)}")
    return seeds


PILOT = "pilot"  # folder of pilot runs, beside the folders of the runs for the papers' tables

# These overrides only change how a run is executed, not its result, so they are not part of its name.
_NAMELESS = (
    *("fresh", "paths.cache", "judge.cache", "judge.client.url", "engine.url", "engine.lanes", "logger", "eval.every"),
    *("rollout.environment_threads", "callbacks.progress"),
)

# These overrides concern only training, so they are not passed to rows that are only evaluated.
_OF_TRAINING = (
    *("states", "allocator", "gate", "reward", "advantage", "loss", "update", "judge", "predictor", "callbacks"),
    *("data.trajectories", "data.good", "data.strict", "iterations", "trainer.max_steps"),
    *("rollout.states", "rollout.turns", "rollout.trajectories", "rollout.max_refills", "rollout.staleness"),
    "rollout.frozen",
)


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep."""

    row: str
    seed: int
    name: str
    overrides: tuple[str, ...]
    cannot: str | None = None  # the reason why the job cannot run
    starts: str | None = None  # name of the run from whose weights this run starts
    start_seed: int | None = None  # seed of that run
    begin: str | None = None  # the override that passes those weights on


def jobs(request: SweepRequest) -> list[Job]:
    """Every requested run of a sweep, one seed of all rows after the other, so that a complete table is there early."""
    sweep, rows = request.sweep, requested_rows(request)
    by_name: dict[tuple[str, int], Job] = {}
    for seed in request.seeds or sweep.seeds:
        for row in rows:
            fixed = _fixed(request, row)
            if request.pilot and fixed is not None:
                continue  # this run exists once for all seeds and is no pilot run
            job = job_of(request, row, seed if fixed is None else fixed)
            by_name.setdefault((job.name, job.seed), job)
    return list(by_name.values())


def _fixed(request: SweepRequest, row: str) -> int | None:
    owner, owned, _ = sweep_row_origin(request.sweep, row, request.folder, request.scale)
    return owner.start_seed if any(made.begins(request.scale) == owned for made in owner.rows.values()) else None


def job_of(request: SweepRequest, row: str, seed: int) -> Job:
    keys = {_key(item) for item in request.extra}
    owner, owned, cannot = sweep_row_origin(request.sweep, row, request.folder, request.scale, keys)
    source = owner.rows[owned]
    extra = tuple(item for item in request.extra if source.trains or not _of_training(_key(item)))
    tail = [f"scale={request.scale}"] if request.scale != "tiny" else []
    tail += sorted(item for item in extra if not _nameless(_key(item)))
    preset = f"{owner.name.replace('_', '/', 1)}/{owned}"
    name = run_name(f"{PILOT}/{preset}" if request.pilot else preset, ",".join(tail))
    begins = source.begins(request.scale)
    alone = owner.start_seed is not None  # whether there is one common starting run, for pilot runs too
    first = (
        job_of(replace(request, sweep=owner, pilot=() if alone else request.pilot), begins, seed) if begins else None
    )
    begin = None
    if first:  # the override that starts the run from the weights that the run ``first`` saves
        left = owner.leaves.get(request.scale, "adapter")
        at = "${seed}" if owner.start_seed is None else str(owner.start_seed)
        begin = f"policy.{'start' if left == 'adapter' else 'model'}='outputs/{first.name}/seed{at}/{left}'"
    own = (*owner.shared(request.scale), *(source.overrides or ()), *source.at.get(request.scale, ()))
    pilot = tuple(item for item in request.pilot if source.trains or not _of_training(_key(item)))
    still = () if source.trains else ("iterations=0",)  # the scale of the sweep may have set iterations
    overrides = (*own, *still, *((begin,) if begin else ()), *extra, *pilot, f"name='{name}'", f"seed={seed}")
    begun = seed if owner.start_seed is None else owner.start_seed
    return Job(row, seed, name, overrides, cannot, first.name if first else None, begun if first else None, begin)


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _nameless(key: str) -> bool:
    return key in _NAMELESS or key.startswith(("hydra.", "hydra/"))  # Hydra's own, such as hydra.searchpath


def _of_training(key: str) -> bool:
    return any(key == part or key.startswith(f"{part}.") for part in _OF_TRAINING)
