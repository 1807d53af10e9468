"""Checks during training that the run's folder was not removed or replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import Callback

from turnwise.errors import Stopped


class StillThere(Callback):
    """Ends the run before the next update if the run's folder was removed or replaced. Without this check, the folder
    of a finished run could contain only some of the run's files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.identity = folder, _identity(folder)

    def on_train_batch_start(self, *of_lightning: Any) -> None:
        """Raises ``Stopped`` if the folder was removed or replaced since the run began."""
        if self.identity is not None and _identity(self.folder) != self.identity:
            raise Stopped(
                f"{self.folder} was removed or replaced while the run wrote to it, and its content is gone; the same command "
                "begins the run again"
            )


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
