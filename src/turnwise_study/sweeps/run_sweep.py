"""Executes a sweep: checks every row, launches unfinished runs, and shows the state of every run; computes the hashes of
its configurations.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.box import SIMPLE_HEAD
from rich.table import Table

from turnwise.config.check import check_config
from turnwise.config.machine import missing_files
from turnwise.config.overrides import composed, explain, took_no_job
from turnwise.config.schema import ConfigError
from turnwise.console import Terminal
from turnwise.errors import InputError, RowsFailed
from turnwise.files import atomic_write
from turnwise.runs.result_file import ResultError, read_result
from turnwise.runs.run_folder import config_hash, hash_of, is_first, read_record
from turnwise.text import plain
from turnwise_study.sweeps.jobs import Job, SweepRequest, jobs, request_of_runs

State = Literal["finished", "failed", "interrupted", "waiting", "changed", "cannot run"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one run of a sweep."""

    job: Job
    folder: Path | None
    state: State
    said: str = ""  # an error or a reason that explains the state

    @property
    def open(self) -> bool:
        return self.state not in ("finished", "cannot run")


def standing(job: Job, cfg: DictConfig | None) -> Standing:
    """``cfg`` is the run's configuration, or None if the run cannot start. ``finished``: the folder has a complete
    ``result.json`` of this configuration; ``changed``: it has a run with another one.
    """
    if cfg is None:
        return Standing(job, None, "cannot run", job.cannot or "")
    folder, wanted = Path(cfg.paths.out), config_hash(cfg)
    other = "of another configuration; fresh=true renames the folder and starts a new run"
    if (folder / "result.json").exists():
        try:
            done = read_result(folder).config_hash == wanted
        except ResultError as error:
            return Standing(job, folder, "interrupted", str(error).splitlines()[0])
        return Standing(job, folder, "finished") if done else Standing(job, folder, "changed", f"the result is {other}")
    if (error_file(folder)).exists():
        text = error_file(folder).read_text(encoding="utf-8", errors="replace")
        return Standing(job, folder, "failed", text.partition("\n\n")[0].strip())
    if not (folder / "config.yaml").exists():
        return Standing(job, folder, "waiting")
    try:
        same = hash_of(read_record(folder)) == wanted
    except ConfigError as error:
        return Standing(job, folder, "changed", str(error))
    if same:
        return Standing(job, folder, "interrupted", "the same command resumes from its last checkpoint")
    return Standing(job, folder, "changed", f"the folder has a run {other}")


def error_file(folder: Path) -> Path:
    """The path of the file with a failed run's error. It is beside the run's folder, which may be emptied."""
    return folder.with_name(f"{folder.name}.error.txt")


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """Executes a run and returns its folder, which its configuration no longer tells once another run of this process
    has begun. The error of a failed run is written to :func:`error_file`.
    """

    task: Callable[[DictConfig], Any]

    def __call__(self, cfg: DictConfig) -> str:
        folder = Path(cfg.paths.out)
        try:
            self.task(cfg)
        except (Exception, SystemExit) as error:
            message = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            trace = "" if isinstance(error, InputError) else traceback.format_exc()
            if is_first():  # at once, because the other runs of the sweep may take hours
                print(f"this run failed: {plain(message)}", file=sys.stderr, flush=True)
            with suppress(OSError):  # the disk may be full
                error_file(folder).parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(error_file(folder)) as part:
                    part.write_text(f"{message}\n\n{trace}", encoding="utf-8")
            if isinstance(error, SystemExit) and os.environ.get("SLURM_NTASKS", "1") != "1":
                raise  # Slurm then ends the run's other tasks
        else:
            error_file(folder).unlink(missing_ok=True)
            return str(folder)
        # The raised error has a built-in type, because launchers send the error between processes and keep it until the
        # last run has ended. It is raised outside of the handler. Otherwise it would refer to the run's own error,
        # whose traceback keeps every object of the run alive.
        raise RuntimeError(f"{folder}: {message}")


def states_table(title: str, standings: Sequence[Standing]) -> Table:
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for header in ("row", "seed", "state", "folder"):
        table.add_column(header, overflow="fold")
    shown = None
    for one in standings:
        if one.state == "cannot run":  # one line for all seeds, because they have the same reason
            if (one.job.row, one.said) != shown:
                table.add_row(one.job.row, "", "cannot run", one.said)
            shown = (one.job.row, one.said)
            continue
        text = f"{one.folder}" + (f"\n{one.said}" if one.said else "")
        table.add_row(one.job.row, str(one.job.seed), one.state, text)
    return table


def survey_sweep(wanted: Iterable[Job], configs: dict[str, DictConfig]) -> list[Standing]:
    """The current state of every run, which is read from the run's folder."""
    standings = []
    for job in wanted:
        cfg = configs.get(job.name)
        if cfg is not None:
            cfg.seed = job.seed
        standings.append(standing(job, cfg))
    return standings


Compose = Callable[[Sequence[str]], DictConfig]
Launch = Callable[[Sequence[Sequence[str]]], object]


def run_sweep(request: SweepRequest, compose: Compose, launch: Launch, console: Terminal) -> list[Standing]:
    """Executes every unfinished run of a sweep, and returns the state of every run. ``compose`` makes a configuration
    of overrides, without Hydra's own settings. ``launch`` executes one run for each list of overrides, here or on
    another machine; a run that fails must not stop the others.
    """
    request = request_of_runs(request)
    sweep = request.sweep
    wanted = jobs(request)
    configs = checked_sweep_configs(wanted, request, compose)
    standings = survey_sweep(wanted, configs)
    title = f"{sweep.name}: {sweep.title}, scale {request.scale}"
    todo = [one for one in standings if one.open or (request.fresh and one.state == "finished")]
    console.print(states_table(title, standings))
    tally = ", ".join(f"{count} {state}" for state, count in Counter(one.state for one in standings).items())
    console.print(f"Runs: {tally}; {len(todo)} runs still have to be executed.")
    if request.dry:
        missing = {one.job.row: missing_files(configs[one.job.name]) for one in todo}
        mistakes = [f"row {row}: {mistake}" for row, wanted in missing.items() for mistake in wanted]
        if mistakes:
            raise ConfigError(mistakes)
    if request.dry or not todo:
        return standings
    trouble = ""
    try:
        for wave in waves(todo):
            launch([one.job.overrides for one in wave])
    except Exception as error:  # launchers raise exceptions of their own types, for example for a killed cluster job
        if took_no_job(error):
            raise
        trouble = f"the launcher reported: {type(error).__name__}: {error}"
    standings = survey_sweep(wanted, configs)
    console.print(states_table(title, standings))
    left = [one for one in standings if one.open]
    if left:
        first = f"{left[0].job.row}, seed {left[0].job.seed}: {left[0].said or left[0].state}"
        lines = [
            f"{len(left)} of {len(todo)} runs did not finish; the same command starts only these runs again. "
            f"The first of them: {first}"
        ]
        raise RowsFailed("\n".join([*lines, trouble] if trouble else lines))
    return standings


def waves(todo: Sequence[Standing]) -> list[list[Standing]]:
    """Groups of runs that may be executed in parallel, one group after the other: a run that starts from the weights of
    another run in ``todo`` is in a later group.
    """
    waves_of: list[list[Standing]] = []
    left = list(todo)
    while left:
        names = {(one.job.name, one.job.seed) for one in left}
        later = [one for one in left if (one.job.starts, one.job.start_seed) in names]
        waves_of.append([one for one in left if one not in later])
        left = later
    return waves_of


def checked_sweep_configs(wanted: Iterable[Job], request: SweepRequest, compose: Compose) -> dict[str, DictConfig]:
    """Name of a run -> checked configuration, of all runs that can start. All seeds of a row share one."""
    configs: dict[str, DictConfig] = {}
    mistakes: list[str] = []
    seen: set[str] = set()
    for job in wanted:
        if job.cannot or job.name in seen:
            continue
        seen.add(job.name)
        try:
            configs[job.name] = compose(job.overrides)
            check_config(configs[job.name])
        except ConfigError as error:
            mistakes += [f"row {job.row}: {mistake}" for mistake in error.mistakes]
        except (HydraException, OmegaConfBaseException) as error:
            message = explain(error, job.overrides, request.folder)
            mistakes += [f"row {job.row}: {mistake}" for mistake in message.mistakes]
    if mistakes:
        raise ConfigError(mistakes)
    return configs


@dataclass(slots=True)
class RowHashes:
    """Computes the configuration hash (``turnwise.runs.run_folder``) of a job. The configuration of a row is composed
    only once for all seeds, and for all sweeps that refer to the row.
    """

    folder: Path  # conf/
    _files: dict[str, bytes] = field(default_factory=dict)
    _configs: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def __call__(self, job: Job) -> str:
        key = tuple(item for item in job.overrides if not item.startswith(("name=", "seed=")))
        if key not in self._configs:
            self._configs[key] = composed(job.overrides, self.folder, self._files)
        self._configs[key].seed = job.seed
        return config_hash(self._configs[key])
