"""Logs a run to Trackio, an optional package with a database and a dashboard on this machine."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger

from turnwise.errors import InputError
from turnwise.runs.result_file import ResultError, read_result

ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")  # variables that make Trackio send data to a server


class Trackio(Logger):
    """Logs a run to Trackio's database (in ``TRACKIO_DIR``, by default in the Hugging Face cache).

    A run that is resumed from a checkpoint continues the newest Trackio run with the name of the run. Any other run
    begins a new Trackio run.

    Args:
        project, name, group: labels of the run in Trackio's dashboard.
        save_dir: the run's folder.
        space: ``owner/name`` of a Space on the Hugging Face Hub to which all data is sent. None: no data leaves this
            machine.
        system: whether the load of CPU and GPU is logged too.

    Raises:
        InputError: the package is missing, Trackio cannot begin the run, or an environment variable names a server
            although ``space`` is None.
    """

    def __init__(
        self,
        project: str,
        save_dir: str,
        name: str,
        group: str | None = None,
        space: str | None = None,
        system: bool = False,
    ) -> None:
        super().__init__()
        try:
            import trackio  # an optional dependency
        except ImportError as error:
            raise InputError(
                f"logger=trackio needs trackio ({error}): `make trackio` installs it "
                "(pip install --no-deps -r requirements-trackio.txt)"
            ) from error
        named = [variable for variable in ELSEWHERE if os.environ.get(variable)]
        if space is None and named:
            raise InputError(
                f"logger.trackio.space is null, but {' and '.join(named)} would send the run to a server: unset each "
                "of these variables, or set logger.trackio.space=owner/name"
            )
        resume = "allow" if any((Path(save_dir) / "checkpoints").glob("*.ckpt")) else "never"
        try:
            with redirect_stdout(io.StringIO()):  # otherwise Trackio would print between the lines of the run
                self.run = trackio.init(
                    project=project, name=name, group=group, space_id=space, resume=resume, embed=False,
                    auto_log_cpu=system, auto_log_gpu=system,
                )  # fmt: skip
        except (ValueError, OSError) as error:  # for example an invalid name, no login, or a full disk
            raise InputError(f"logger.trackio: Trackio cannot begin the run ({error})") from error
        self._name, self._step, self._finish = name, 0, trackio.finish

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> str:
        return str(self.run.id)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Adds settings to the run's configuration, which Trackio stores together with the first metrics."""
        self.run.config.update({str(key): value for key, value in dict(params).items()})

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._step = self._step if step is None else step
        self.run.log(dict(metrics), step=self._step)

    def end(self, folder: Path) -> None:
        """Logs the main values of the run's result, if it exists, and waits until Trackio has written all data."""
        try:
            result = read_result(folder)
        except ResultError:
            pass
        else:
            measured = {
                "result/before": result.in_domain.base,
                "result/after": result.in_domain.after,
                "result/change": result.in_domain.delta,
                "result/ood_change": result.ood.mean_change,
            }
            self.log_metrics({name: value for name, value in measured.items() if value is not None})
        with redirect_stdout(io.StringIO()):
            self._finish()
