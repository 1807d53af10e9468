"""Computes the configuration hash of each run of a sweep from the current configuration files."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import hydra
import omegaconf
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from turnwise.config.overrides import explain
from turnwise.config.schema import compose_config
from turnwise.files import KeptValues, checksum
from turnwise.runs.run_folder import config_hash
from turnwise_study.sweeps.jobs import Asked, Job, job_of, picked

_PACKAGE = Path(__file__).parents[2] / "turnwise"
CODE = (
    _PACKAGE / "config",
    _PACKAGE / "runs" / "run_folder.py",
    Path(__file__),
)  # source files on which a hash depends
# matches overrides that make a hash depend on folders other than ``conf/``, or on the running process
_OUTSIDE = re.compile(r"searchpath|oc\.env|hydra:")
_ENVIRONMENT = re.compile(rb"oc\.env:(\w+)")


@dataclass(slots=True)
class RowHashes:
    """Computes the configuration hash (``turnwise.runs.run_folder.config_hash``) of a job, and caches it. A job is one
    run of a sweep: a row with one seed.

    The configuration of a row is composed only once for all seeds, and for all sweeps that refer to the row. A hash
    that is in the cache file ``kept`` needs no configuration. The cache file is ignored if files on which hashes depend
    have changed.
    """

    folder: Path  # conf/
    kept: Path | None = None
    _kept: KeptValues = field(init=False)
    _known: dict[str, str] = field(default_factory=dict)  # hashes that are not written to the file
    _files: dict[str, bytes] = field(default_factory=dict)
    _configs: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kept = KeptValues(self.kept, _state(self.folder) if self.kept is not None else "")

    def __call__(self, job: Job) -> str:
        key = json.dumps([job.seed, *self._row(job)])
        known = self._known if _OUTSIDE.search(key) else self._kept
        if key not in known:
            try:
                cfg = self._composed(job)
            except (HydraException, OmegaConfBaseException) as error:
                raise explain(error, job.overrides, self.folder) from error
            cfg.seed = job.seed
            known[key] = config_hash(cfg)
        return known[key]

    def keep(self) -> None:
        """Writes the cache file, without hashes that depend on the process or on folders other than ``conf/``."""
        self._kept.write()

    def takes(self, asked: Asked) -> None:
        """Checks that at least one requested row accepts the extra overrides of the command line."""
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
        key = self._row(job)
        if key not in self._configs:
            self._configs[key] = compose_config(job.overrides, self.folder, read=self._files)
        return self._configs[key]

    @staticmethod
    def _row(job: Job) -> tuple[str, ...]:
        return tuple(item for item in job.overrides if not item.startswith(("name=", "seed=")))


def _state(folder: Path) -> str:
    paths = [path for root in (folder, *CODE) for path in (sorted(root.rglob("*.*")) if root.is_dir() else [root])]
    texts = [(str(path), path.read_bytes()) for path in paths if path.suffix in (".yaml", ".py")]
    names = sorted({name.decode() for _, text in texts for name in _ENVIRONMENT.findall(text)})
    values = {name: os.environ.get(name) for name in names}
    return checksum([], texts, hydra.__version__, omegaconf.__version__, sys.version, values)
