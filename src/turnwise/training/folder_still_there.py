"""Checks during training that the run's folder was not removed or replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import Callback

from turnwise.errors import Stopped


class StillThere(Callback):
    """Ends the run before its next update if its folder was removed or replaced.

    Without this check, the run would continue, and its folder would in the end contain only a part of the run's files.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.identity = folder, _identity(folder)

    def on_train_batch_start(self, *of_lightning: Any) -> None:
        """Checks that the folder is still the one in which the run began.

        Raises:
            Stopped: the folder was removed or replaced.
        """
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
