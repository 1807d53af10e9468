"""Executes a sweep: checks every row's configuration, launches unfinished runs, and prints the state of every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.check import check_config
from turnwise.config.overrides import explain, took_no_job
from turnwise.config.schema import ConfigError
from turnwise.console import Terminal
from turnwise.errors import RowsFailed
from turnwise.experiments.command_line import Asked, played
from turnwise.experiments.jobs import Job, jobs
from turnwise.experiments.run_states import Standing, states_table, survey

Compose = Callable[[Sequence[str]], DictConfig]
Launch = Callable[[Sequence[Sequence[str]]], object]


def run_sweep(asked: Asked, compose: Compose, launch: Launch, console: Terminal) -> list[Standing]:
    """Executes every unfinished run of a sweep, and returns the state of every run.

    Args:
        compose: a function that returns the configuration for a list of overrides, without Hydra's own settings.
        launch: a function that takes lists of overrides and executes one run for each list, on this or another machine.
            A run that fails must not stop the other runs.

    Raises:
        InputError: the configuration of a row is refused; then nothing is executed.
        RowsFailed: some runs did not finish; all other runs have been executed.
        FailedJobError: raised by submitit if Slurm refuses the job.
    """
    asked = played(asked)
    sweep = asked.sweep
    found = jobs(asked)
    configs = composed(found, asked, compose)
    standings = survey(found, configs)
    title = f"{sweep.name}: {sweep.title}, scale {asked.scale}"
    todo = [one for one in standings if one.open or (asked.fresh and one.state == "finished")]
    console.print(states_table(title, standings))
    told = ", ".join(f"{count} {state}" for state, count in Counter(one.state for one in standings).items())
    console.print(f"Runs: {told}; {len(todo)} runs still have to be executed.")
    if asked.dry or not todo:
        return standings
    trouble = ""
    try:
        for wave in waves(todo):
            launch([one.job.overrides for one in wave])
    except Exception as error:  # launchers raise exceptions of their own types, for example for a killed cluster job
        if took_no_job(error):
            raise
        trouble = f"the launcher reported: {type(error).__name__}: {error}"
    standings = survey(found, configs)
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
    """Splits the runs of a sweep into groups that are executed one after the other; the runs of a group may be executed
    in parallel. A run that starts from the weights of another run in ``todo`` is in a later group.
    """
    found: list[list[Standing]] = []
    left = list(todo)
    while left:
        names = {(one.job.name, one.job.seed) for one in left}
        later = [one for one in left if (one.job.starts, one.job.start_seed) in names]
        found.append([one for one in left if one not in later])
        left = later
    return found


def composed(found: Iterable[Job], asked: Asked, compose: Compose) -> dict[str, DictConfig]:
    """Returns name of a run -> checked configuration, for all runs that can start. All seeds of a row share one
    configuration.

    Raises:
        ConfigError: a configuration has a mistake. The error lists all mistakes of all rows.
    """
    configs: dict[str, DictConfig] = {}
    mistakes: list[str] = []
    seen: set[str] = set()
    for job in found:
        if job.cannot or job.name in seen:
            continue
        seen.add(job.name)
        try:
            configs[job.name] = compose(job.overrides)
            check_config(configs[job.name])
        except ConfigError as error:
            mistakes += [f"row {job.row}: {mistake}" for mistake in error.mistakes]
        except (HydraException, OmegaConfBaseException) as error:
            told = explain(error, job.overrides, asked.folder)
            mistakes += [f"row {job.row}: {mistake}" for mistake in told.mistakes]
    if mistakes:
        raise ConfigError(mistakes)
    return configs
