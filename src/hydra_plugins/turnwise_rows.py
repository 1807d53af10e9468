"""``hydra/sweeper=rows``: the rows of a sweep file as Hydra jobs, on whichever launcher is chosen.

Hydra reads this at every start, so nothing heavy is imported before a sweep is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import MISSING, DictConfig, open_dict

# Of the sweeper; ``train.py`` writes them from its command line. No dataclass: Hydra reads this file outside sys.modules.
_KEYS = {
    "_target_": "hydra_plugins.turnwise_rows.RowsSweeper",
    "arguments": [],  # sweep=NAME, rows=..., and what goes to every row
    "folder": MISSING,  # conf/
}


class RowsSweeper(Sweeper):
    """Composes the rows of a sweep, leaves out what is finished, and hands the rest to the launcher in one go."""

    def __init__(self, arguments: Sequence[str], folder: str) -> None:
        self.arguments, self.folder = list(arguments), folder
        self.launcher: Launcher | None = None
        self.base: DictConfig | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from turnwise_study.sweeps.run_sweep import Recorded

        self.base, self.context = config, hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=Recorded(task_function), config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from pathlib import Path

        from turnwise.console import Terminal
        from turnwise_study.sweeps.jobs import ask
        from turnwise_study.sweeps.run_sweep import run_sweep

        assert self.launcher is not None
        launcher = self.launcher
        asked = ask(self.arguments, Path(self.folder))
        return run_sweep(
            asked, self.compose, lambda overrides: launcher.launch([list(job) for job in overrides], 0), Terminal()
        )

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of one run, as its job will see it."""
        assert self.base is not None
        cfg = self.context.config_loader.load_sweep_config(self.base, list(overrides))
        with open_dict(cfg):
            del cfg["hydra"]
        return cfg


ConfigStore.instance().store(group="hydra/sweeper", name="rows", node=_KEYS, provider="turnwise")
