"""``hydra/sweeper=runs``: Hydra's own sweeper of ``-m``, which starts at least one run, checks all runs before the
first one, goes on after a run that fails, and leaves no file beside the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class _Told:
    """A launcher whose failed runs are reported together, when all runs have ended."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Raises RowsFailed if runs have failed."""
        from turnwise.errors import RowsFailed

        results = self.launcher.launch(job_overrides, initial_job_idx=initial_job_idx)
        failed = [str(one._return_value) for one in results if one.status == JobStatus.FAILED]
        if failed:
            told = (
                f"{len(failed)} of {len(results)} runs did not finish; the same command starts only these runs again:"
            )
            raise RowsFailed("\n".join([told, *(f"  - {error}" for error in failed)]))
        return results


class RunsSweeper(BasicSweeper):
    """One run for each combination of the values that the command line names."""

    @staticmethod
    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        """Returns the overrides of every run, in one batch.

        Raises:
            ConfigError: a range or pattern names no values, they make more runs than anyone waits for, or the command
                asks for several batches.
        """
        from turnwise.config.overrides import MOST, swept
        from turnwise.config.schema import ConfigError

        if max_batch_size is not None:  # a batch with a failed run would end the command before the next batch
            raise ConfigError(
                ["hydra.sweeper.max_batch_size: all runs are checked and started as one batch; leave out this setting"]
            )
        counts = {one.input_line: len(swept(one)) for one in overrides if one.is_sweep_override()}
        if empty := [line for line, count in counts.items() if not count]:
            raise ConfigError([f"{line}: it names no values, so that no run would start" for line in empty])
        if prod(counts.values()) > MOST:
            raise ConfigError([f"{' '.join(map(str, counts))}: more than {MOST} runs; name fewer values"])
        split: list[list[list[str]]] = BasicSweeper.split_arguments(overrides, None)
        return split

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from turnwise_study.sweeps.run_sweep import Recorded

        super().setup(hydra_context=hydra_context, task_function=Recorded(task_function), config=config)
        self.launcher = _Told(self.launcher)  # type: ignore[arg-type, assignment]

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Composes and checks every run.

        Raises:
            ConfigError: runs have mistakes. The error lists each mistake once, with the overrides of its runs.
        """
        from turnwise.config.check import check_config
        from turnwise.config.schema import ConfigError

        assert self.config is not None and self.hydra_context is not None
        mistakes: dict[str, list[set[str]]] = {}
        for run in batch:
            cfg = self.hydra_context.config_loader.load_sweep_config(self.config, list(run))
            HydraConfig.instance().set_config(cfg)  # the name of a run is made of its overrides
            with open_dict(cfg):
                del cfg["hydra"]
            try:
                check_config(cfg)
            except ConfigError as error:
                for mistake in error.mistakes:
                    mistakes.setdefault(mistake, []).append(set(run))
        if mistakes:
            everywhere = set.intersection(*map(set, batch))
            where = {mistake: set.intersection(*runs) - everywhere for mistake, runs in mistakes.items()}
            raise ConfigError([": ".join(filter(None, (" ".join(sorted(own)), one))) for one, own in where.items()])

    def sweep(self, arguments: list[str]) -> Any:
        """Runs all of them. Hydra's record of the command goes when it ends: each run keeps its own configuration."""
        try:
            return super().sweep(arguments)
        finally:
            assert self.config is not None
            folder = Path(self.config.hydra.sweep.dir)
            with suppress(OSError):
                (folder / "multirun.yaml").unlink(missing_ok=True)
                folder.rmdir()  # it goes if nothing is in it


_KEYS = {"_target_": "hydra_plugins.turnwise_runs.RunsSweeper", "max_batch_size": None, "params": None}
ConfigStore.instance().store(group="hydra/sweeper", name="runs", node=_KEYS, provider="turnwise")
