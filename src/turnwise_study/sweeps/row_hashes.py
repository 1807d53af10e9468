"""The hashes of a sweep's jobs, for which their configurations are composed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.overrides import explain
from turnwise.config.schema import compose_config
from turnwise.errors import InputError
from turnwise.runs.run_folder import config_hash
from turnwise_study.sweeps.jobs import Asked, Job, job_of, picked


@dataclass(slots=True)
class RowHashes:
    """Computes the configuration hash (``turnwise.runs.run_folder``) of a job. The configuration of a row is composed
    only once for all seeds, and for all sweeps that refer to the row.
    """

    folder: Path  # conf/
    _files: dict[str, bytes] = field(default_factory=dict)
    _configs: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def __call__(self, job: Job) -> str:
        cfg = self._composed(job)
        cfg.seed = job.seed
        return config_hash(cfg)

    def takes(self, asked: Asked) -> None:
        """Raises a ConfigError if no requested row accepts the extra overrides of the command line."""
        refused: InputError | None = None
        for row in picked(asked) if asked.extra else ():
            try:
                self._composed(job_of(asked, row, asked.sweep.seeds[0]))
                return
            except InputError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def _composed(self, job: Job) -> DictConfig:
        key = tuple(item for item in job.overrides if not item.startswith(("name=", "seed=")))
        if key not in self._configs:
            try:
                self._configs[key] = compose_config(job.overrides, self.folder, read=self._files)
            except (HydraException, OmegaConfBaseException) as error:
                raise explain(error, job.overrides, self.folder) from error
        return self._configs[key]
