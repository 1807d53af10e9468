"""Computes the configuration hash that each run of a sweep has with the current configuration files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.hydra_errors import explain
from turnwise.config.schema import compose_config
from turnwise.experiments.jobs import Asked, Job, job_of, picked
from turnwise.runs.identity import config_hash


@dataclass(slots=True)
class RowHashes:
    """Maps a job to its configuration hash (``turnwise.runs.identity.config_hash``).

    A row is composed only once for all its seeds and for all sweeps that refer to it.
    """

    folder: Path  # conf/
    _configs: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def __call__(self, job: Job) -> str:
        """Returns the hash, twelve hex digits.

        Raises:
            ConfigError: the row does not compose; every bad override is named.
        """
        try:
            cfg = self._composed(job)
        except (HydraException, OmegaConfBaseException) as error:
            raise explain(error, job.overrides, self.folder) from error
        cfg.seed = job.seed
        return config_hash(cfg)

    def takes(self, asked: Asked) -> None:
        """Refuses overrides that none of the requested rows accepts.

        Raises:
            ConfigError: the mistakes that the first row reports.
        """
        refused: tuple[Job, Exception] | None = None
        for row in picked(asked) if asked.extra else ():
            job = job_of(asked, row, asked.sweep.seeds[0])
            try:
                self._composed(job)
                return
            except (HydraException, OmegaConfBaseException) as error:
                refused = refused or (job, error)
        if refused is not None:
            raise explain(refused[1], refused[0].overrides, self.folder) from refused[1]

    def _composed(self, job: Job) -> DictConfig:
        key = tuple(item for item in job.overrides if not item.startswith(("name=", "seed=")))
        if key not in self._configs:
            self._configs[key] = compose_config(job.overrides, self.folder)
        return self._configs[key]
