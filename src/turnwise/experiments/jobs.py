"""Lists the runs of a sweep, each with its row, seed, overrides and folder."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from turnwise.config.schema import run_name
from turnwise.errors import InputError
from turnwise.experiments.claims import Scale
from turnwise.experiments.sweep_file import Sweep, find_sweep

PILOT = "pilot"  # folder of pilot runs, beside the folders of the runs for the papers' tables

# These overrides only change how a run is executed, not its result, so they are not part of its name.
_NAMELESS = (
    "fresh",
    "paths.cache",
    "judge.cache",
    "judge.client.url",
    "engine.urls",
    "engine.lanes",
    "rollout.environment_threads",
    "rollout.spool",
    "engine.local.python",
    "logger",
    "callbacks.progress",
    "eval.every",
)

# These overrides concern only training, so they are not passed to rows that are only evaluated.
_OF_TRAINING = (
    *("states", "allocator", "gate", "reward", "advantage", "loss", "update", "judge", "predictor", "callbacks"),
    *("data.trajectories", "data.good", "data.strict", "trainer.max_epochs", "trainer.max_steps"),
    *("rollout.states", "rollout.turns", "rollout.trajectories", "rollout.max_refills", "rollout.staleness"),
    "rollout.frozen",
)


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep.

    ``cannot`` is the reason why the job cannot run, or None. ``starts`` names the run from whose weights this run
    starts, ``begin`` is the override that passes those weights on, and ``start_seed`` is the seed of that run.
    """

    row: str
    seed: int
    name: str
    overrides: tuple[str, ...]
    cannot: str | None = None
    starts: str | None = None
    start_seed: int | None = None
    begin: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """The parsed command line of a sweep: the ``rows`` and ``seeds`` to run, and the ``extra`` overrides.

    Every row that accepts an ``extra`` override gets it. If ``pilot`` is set, pilot runs are requested
    (:func:`of_pilots`).
    """

    sweep: Sweep
    folder: Path  # conf/
    scale: Scale = "tiny"
    rows: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    extra: tuple[str, ...] = ()
    dry: bool = False
    pilot: tuple[str, ...] = ()

    @property
    def fresh(self) -> bool:
        return "fresh=true" in (item.lower() for item in self.extra)


def played(asked: Asked) -> Asked:
    """Returns the request for the runs whose results a sweep shows. These are its own runs, or the runs of the sweep
    that ``gate_report`` names.
    """
    source = asked.sweep.gate_report
    return (
        asked
        if source in (None, asked.sweep.name)
        else replace(asked, sweep=find_sweep(source, asked.folder), rows=None)
    )


def of_pilots(asked: Asked) -> Asked:
    """Returns the request for the pilot runs of a sweep. They are runs of the rows that preconditions name, and of the
    rows from whose weights these runs start, with the sweep's pilot seeds.

    The names of pilot runs begin with ``pilot/``. Pilot runs use the tasks of ``eval.seed=0``, because settings may be
    chosen by looking at their results.

    Raises:
        InputError: the sweep has no pilot runs.
    """
    sweep = asked.sweep
    rows = [
        one.row for one in sweep.preconditions.values() if one.same is None and one.row in (asked.rows or sweep.rows)
    ]
    if sweep.pilots is None or not rows:
        shared = sorted({one.same.partition("/")[0] for one in sweep.preconditions.values() if one.same})
        told = (
            f"its preconditions are measured by the pilot runs of {', '.join(shared)}"
            if shared
            else "the sweep measures no precondition on these rows"
        )
        raise InputError(f"pilots=true: {sweep.name} has no pilot runs of its own: {told}")
    if sweep.start_seed is None:
        for row in rows:  # the list grows in the loop, because the row that is added may itself start from another row
            begins = sweep.rows[row].begins(asked.scale)
            rows += [begins] if begins is not None and begins not in rows else []
    return replace(
        asked,
        rows=tuple(dict.fromkeys(reversed(rows))),
        seeds=sweep.pilots.seeds,
        pilot=(*sweep.pilots.overrides, "eval.seed=0"),
    )


def picked(asked: Asked) -> tuple[str, ...]:
    """Returns the names of the rows of a sweep that are requested on the command line.

    Raises:
        InputError: a row is unknown; the message names the most similar one.
    """
    sweep = asked.sweep
    rows = asked.rows or tuple(sweep.rows)
    for row in rows:
        if row not in sweep.rows:
            near = get_close_matches(row, sweep.rows, n=1, cutoff=0.6)
            told = f"did you mean {near[0]!r}?" if near else f"the rows are {', '.join(sweep.rows)}"
            raise InputError(f"rows={row}: {sweep.name} has no row {row!r}; {told}")
    return rows


def jobs(asked: Asked) -> list[Job]:
    """Returns every requested run of a sweep. The runs of all rows with one seed come before the runs with the next
    seed, so that a complete table is available early.

    Raises:
        InputError: a row is unknown, here or in another sweep that a row refers to.
    """
    sweep, rows = asked.sweep, picked(asked)
    found: dict[tuple[str, int], Job] = {}
    for seed in asked.seeds or sweep.seeds:
        for row in rows:
            fixed = _fixed(asked, row)
            if asked.pilot and fixed is not None:
                continue  # this run exists once for all seeds and is no pilot run
            job = job_of(asked, row, seed if fixed is None else fixed)
            found.setdefault((job.name, job.seed), job)
    return list(found.values())


def _fixed(asked: Asked, row: str) -> int | None:
    """Returns ``start_seed`` of the sweep that defines a row, if other rows start from this row, otherwise None."""
    owner, owned, _ = origin(asked.sweep, row, asked.folder, asked.scale)
    return owner.start_seed if any(made.begins(asked.scale) == owned for made in owner.rows.values()) else None


def job_of(asked: Asked, row: str, seed: int) -> Job:
    """Returns the run of a sweep with the given row and seed."""
    given = {_key(item) for item in asked.extra}
    owner, owned, cannot = origin(asked.sweep, row, asked.folder, asked.scale, given)
    source = owner.rows[owned]
    extra = tuple(item for item in asked.extra if source.trains or not _of_training(_key(item)))
    tail = [f"scale={asked.scale}"] if asked.scale != "tiny" else []
    tail += sorted(item for item in extra if _key(item) not in _NAMELESS)
    preset = f"{PILOT}/{_preset(owner, owned)}" if asked.pilot else _preset(owner, owned)
    name = run_name(preset, ",".join(re.sub(r"[^\w.,=+~/\[\]-]", "_", item) for item in tail))
    begins = source.begins(asked.scale)
    alone = owner.start_seed is not None  # whether there is one common starting run, for pilot runs too
    first = job_of(replace(asked, sweep=owner, pilot=() if alone else asked.pilot), begins, seed) if begins else None
    begin = _begin(owner, asked.scale, first) if first else None
    own = (*owner.shared(asked.scale), *(source.overrides or ()), *source.at.get(asked.scale, ()))
    pilot = tuple(item for item in asked.pilot if source.trains or not _of_training(_key(item)))
    overrides = (*own, *((begin,) if begin else ()), *extra, *pilot, f"name='{name}'", f"seed={seed}")
    begun = seed if owner.start_seed is None else owner.start_seed
    return Job(row, seed, name, overrides, cannot, first.name if first else None, begun if first else None, begin)


def _begin(sweep: Sweep, scale: Scale, first: Job) -> str:
    """Returns the override that starts a run from the weights that the run ``first`` saves.

    If ``first`` itself started from an adapter, it saves all weights (``training.export``), and the override sets
    ``policy.model`` to them.
    """
    merged = (first.begin or "").startswith("policy.start=")
    left = "model" if merged else sweep.leaves.get(scale, "adapter")
    key = "policy.start" if left == "adapter" else "policy.model"
    at = "${seed}" if sweep.start_seed is None else str(sweep.start_seed)
    return f"{key}='outputs/{first.name}/seed{at}/{left}'"


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def _of_training(key: str) -> bool:
    return any(key == part or key.startswith(f"{part}.") for part in _OF_TRAINING)


def origin(
    sweep: Sweep, row: str, folder: Path, scale: Scale, given: Collection[str] = ()
) -> tuple[Sweep, str, str | None]:
    """Returns the sweep and the row that define the runs of a row, after following its references to other rows
    (``same``), and the first reason why these runs cannot start, or None.

    Raises:
        InputError: a row refers to a missing row, or rows refer to each other in a circle.
    """
    here, name, cannot, passed = sweep, row, sweep.missing(sweep.rows[row], scale, given), {(sweep.name, row)}
    while (same := here.rows[name].shares(scale)) is not None:
        there, _, name = same.partition("/")
        referring = here
        here = find_sweep(there, folder)
        if name not in here.rows or (there, name) in passed:
            raise InputError(
                f"conf/sweep/{referring.name}.yaml: `same` refers to {same!r}, which is missing or is the row itself"
            )
        passed.add((there, name))
        cannot = cannot or here.missing(here.rows[name], scale, given)
    return here, name, cannot


def preset(sweep: Sweep, row: str, folder: Path) -> str:
    """Returns the name that the runs of a sweep's row have at the tiny scale, for example ``pivotrl/tab4/full``."""
    owner, owned, _ = origin(sweep, row, folder, "tiny")
    return _preset(owner, owned)


def _preset(owner: Sweep, row: str) -> str:
    return f"{owner.name.replace('_', '/', 1)}/{row}"


def seeds_of(text: str) -> tuple[int, ...]:
    """Parses seeds such as ``0,1,2``.

    Raises:
        InputError: the text is not a comma-separated list of whole numbers of at least 0.
    """
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"seed={text}: give a comma-separated list of whole numbers") from None
    if min(seeds) < 0:
        raise InputError(f"seed={text}: a seed must be at least 0, got {min(seeds)}")
    return seeds
