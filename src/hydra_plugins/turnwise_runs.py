"""``hydra/sweeper=runs``: Hydra's own sweeper of ``-m``, which starts at least one run and leaves no file beside the runs."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override


class RunsSweeper(BasicSweeper):
    """One run for each combination of the values that the command line names."""

    @staticmethod
    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        """Returns the overrides of every run, in one batch.

        Raises:
            ConfigError: a range or pattern names no values, or they make more runs than anyone waits for.
        """
        from turnwise.config.hydra_errors import MOST, swept
        from turnwise.config.schema import ConfigError

        counts = {one.input_line: len(swept(one)) for one in overrides if one.is_sweep_override()}
        if empty := [line for line, count in counts.items() if not count]:
            raise ConfigError([f"{line}: it names no values, so that no run would start" for line in empty])
        if prod(counts.values()) > MOST:
            raise ConfigError([f"{' '.join(map(str, counts))}: more than {MOST} runs; name fewer values"])
        split: list[list[list[str]]] = BasicSweeper.split_arguments(overrides, max_batch_size)
        return split

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
