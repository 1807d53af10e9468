"""Lists the runs of a sweep, each with its row, seed, overrides and folder."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from turnwise.config.schema import run_name
from turnwise.experiments.claims import Scale
from turnwise.experiments.command_line import Asked, picked
from turnwise.experiments.sweep_file import Sweep, origin

PILOT = "pilot"  # folder of pilot runs, beside the folders of the runs for the papers' tables

# These overrides only change how a run is executed, not its result, so they are not part of its name.
_NAMELESS = (
    "fresh",
    "paths.cache",
    "judge.cache",
    "judge.client.url",
    "engine.url",
    "engine.lanes",
    "rollout.environment_threads",
    "rollout.spool",
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
    """One run of a sweep."""

    row: str
    seed: int
    name: str
    overrides: tuple[str, ...]
    cannot: str | None = None  # the reason why the job cannot run
    starts: str | None = None  # name of the run from whose weights this run starts
    start_seed: int | None = None  # seed of that run
    begin: str | None = None  # the override that passes those weights on


def jobs(asked: Asked) -> list[Job]:
    """Returns every requested run of a sweep. The runs of all rows with one seed come before the runs with the next
    seed, so that a complete table is available early.

    Raises:
        InputError: a row is unknown, in this sweep or in another sweep that a row refers to.
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
    tail += sorted(item for item in extra if not _nameless(_key(item)))
    preset = f"{PILOT}/{_preset(owner, owned)}" if asked.pilot else _preset(owner, owned)
    name = run_name(preset, ",".join(re.sub(r"[^\w.,=+~/\[\]-]", "_", item) for item in tail))
    begins = source.begins(asked.scale)
    alone = owner.start_seed is not None  # whether there is one common starting run, for pilot runs too
    first = job_of(replace(asked, sweep=owner, pilot=() if alone else asked.pilot), begins, seed) if begins else None
    begin = _begin(owner, asked.scale, first) if first else None
    own = (*owner.shared(asked.scale), *(source.overrides or ()), *source.at.get(asked.scale, ()))
    pilot = tuple(item for item in asked.pilot if source.trains or not _of_training(_key(item)))
    still = () if source.trains else ("trainer.max_epochs=0",)  # the scale of the sweep may have set iterations
    overrides = (*own, *still, *((begin,) if begin else ()), *extra, *pilot, f"name='{name}'", f"seed={seed}")
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


def _nameless(key: str) -> bool:
    return key in _NAMELESS or key.startswith(("hydra.", "hydra/"))  # Hydra's own, such as hydra.searchpath


def _of_training(key: str) -> bool:
    return any(key == part or key.startswith(f"{part}.") for part in _OF_TRAINING)


def preset(sweep: Sweep, row: str, folder: Path) -> str:
    """Returns the name of the runs of a row at the tiny scale, for example ``pivotrl/tab4/full``."""
    owner, owned, _ = origin(sweep, row, folder, "tiny")
    return _preset(owner, owned)


def _preset(owner: Sweep, row: str) -> str:
    return f"{owner.name.replace('_', '/', 1)}/{row}"
