"""Hydra's sweepers of this project: ``rows`` starts the rows of a sweep file, ``runs`` those of ``-m``.

Hydra reads this file at every start, so nothing heavy is imported before runs are started. Hydra
does not add the module to ``sys.modules``, where a dataclass would look for its annotations: there is none here.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException


def _composed(context: HydraContext, base: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration of one run, as its job will see it."""
    cfg = context.config_loader.load_sweep_config(base, list(overrides))
    HydraConfig.instance().set_config(cfg)  # the name of a run of -m is made of its overrides
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


class RowsSweeper(Sweeper):
    """Composes the rows of a sweep, leaves out what is finished, and hands the rest to the launcher in one go.

    ``train.py`` writes the keys from its command line: ``arguments`` has sweep=NAME, rows=..., and what goes to every
    row; ``folder`` is conf/.
    """

    def __init__(self, arguments: Sequence[str], folder: str) -> None:
        self.arguments, self.folder = list(arguments), folder

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from turnwise_study.sweeps.run_sweep import RecordedJob

        self.base, self.context = config, hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=RecordedJob(task_function), config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from turnwise.console import Terminal
        from turnwise_study.sweeps.jobs import read_sweep_request
        from turnwise_study.sweeps.run_sweep import run_sweep

        launcher = self.launcher
        assert launcher is not None  # set up before
        return run_sweep(
            read_sweep_request(self.arguments, Path(self.folder)),
            lambda overrides: _composed(self.context, self.base, overrides),
            lambda overrides: launcher.launch([list(job) for job in overrides], 0),
            Terminal(),
        )


def _compare(folders: Sequence[Path]) -> None:
    """Prints a table of the runs that have a result, and the command that writes it as a page."""
    from turnwise.console import sized
    from turnwise_study.comparison import comparison_table, runs_to_compare
    from turnwise_study.tables import show

    ended = sorted({str(folder.parent) for folder in folders if (folder / "result.json").exists()})
    if ended:
        show(
            [comparison_table(env, scale, rows) for (env, scale), rows in runs_to_compare(ended).sections.items()],
            sized(160),
        )
        print(f"python scripts/report.py {shlex.join(ended)} --html compared.html")


class _Reporting:
    """A launcher whose failed runs are reported together, when all runs have ended."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from turnwise.errors import RowsFailed

        results = self.launcher.launch(job_overrides, initial_job_idx=initial_job_idx)
        failed = [f"  - {one._return_value}" for one in results if one.status == JobStatus.FAILED]
        _compare([Path(one.return_value) for one in results if one.status == JobStatus.COMPLETED])
        if failed:
            told = (
                f"{len(failed)} of {len(results)} runs did not finish; the same command starts only these runs again:"
            )
            raise RowsFailed("\n".join([told, *failed]))
        return results


def _names_values(sweep: Override) -> bool:
    with suppress(ValueError):  # a range with steps of 0
        return sweep.is_discrete_sweep() and any(sweep.sweep_string_iterator())
    return False


class RunsSweeper(BasicSweeper):
    """Hydra's own sweeper of ``-m``, one run for each combination of values, which starts at least one run, checks all
    runs before the first one, goes on after a run that fails, and leaves no file beside the runs.
    """

    @staticmethod
    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        """The overrides of every run, in one batch."""
        from turnwise.config.schema import ConfigError

        if max_batch_size is not None:  # a batch with a failed run would end the command before the next batch
            raise ConfigError(
                ["hydra.sweeper.max_batch_size: all runs are checked and started as one batch; leave out this setting"]
            )
        sweeps = [one for one in overrides if one.is_sweep_override()]
        if empty := [one.input_line for one in sweeps if not _names_values(one)]:
            raise ConfigError([f"{line}: it names no values, so that no run would start" for line in empty])
        split: list[list[list[str]]] = BasicSweeper.split_arguments(overrides, None)
        return split

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from turnwise_study.sweeps.run_sweep import RecordedJob

        super().setup(hydra_context=hydra_context, task_function=RecordedJob(task_function), config=config)
        self.launcher = _Reporting(self.launcher)  # type: ignore[arg-type, assignment]

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Composes and checks every run. A ConfigError lists each mistake once, with the overrides of its runs."""
        from turnwise.config.check import check_config
        from turnwise.config.overrides import explain
        from turnwise.config.schema import ConfigError

        assert self.config is not None and self.hydra_context is not None
        mistakes: dict[str, list[set[str]]] = {}
        for run in batch:
            try:
                check_config(_composed(self.hydra_context, self.config, run))
            except (HydraException, OmegaConfBaseException) as error:
                sources = self.config.hydra.runtime.config_sources
                raise explain(error, run, Path(next(one.path for one in sources if one.provider == "main"))) from error
            except ConfigError as error:
                for mistake in error.mistakes:
                    mistakes.setdefault(mistake, []).append(set(run))
        if mistakes:
            everywhere = set.intersection(*map(set, batch))
            where = {mistake: set.intersection(*runs) - everywhere for mistake, runs in mistakes.items()}
            raise ConfigError([": ".join(filter(None, (" ".join(sorted(own)), one))) for one, own in where.items()])

    def sweep(self, arguments: list[str]) -> Any:
        try:
            return super().sweep(arguments)
        finally:  # Hydra's record of the command goes: each run keeps its own configuration
            assert self.config is not None
            folder = Path(self.config.hydra.sweep.dir)
            with suppress(OSError):
                (folder / "multirun.yaml").unlink(missing_ok=True)
                folder.rmdir()  # it goes if nothing is in it


for _name, _keys in {
    "rows": {"_target_": "hydra_plugins.turnwise_sweepers.RowsSweeper", "arguments": [], "folder": "???"},
    "runs": {"_target_": "hydra_plugins.turnwise_sweepers.RunsSweeper", "max_batch_size": None, "params": None},
}.items():
    ConfigStore.instance().store(group="hydra/sweeper", name=_name, node=_keys, provider="turnwise")
