"""Writes the HTML page and ``status.json`` of a run at its start, while it runs, and when it is interrupted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from types import TracebackType

from turnwise.files import no_room
from turnwise.reports.run_page import write_report
from turnwise.runs.status_file import NAME, Status, read_status, spent, write_status

logger = logging.getLogger(__name__)

SECONDS = 5.0  # least seconds between two updates of the HTML page within a phase of the run
SHARE = 50  # least pause between two updates of the page within a phase, in multiples of the duration of an update
# Least pause before an update of the page at the start of a phase, in multiples of the duration of an update. Without
# this pause, a run of a few seconds would spend most of its time on the page.
PHASE_SHARE = 10


class Live:
    """Writes the status of a run to ``status.json`` and to the run's HTML page. Errors while writing never end the run.

    :class:`turnwise.training.progress.Phases` calls the object with each new status. At the end of a ``with`` block,
    the object removes ``status.json``, or after an error writes the final status.

    Args:
        command: the command line that resumes the run.
        writes: whether this process writes the run's files.
        page: function that writes the run's page.
        began: when this start of the run began, as a Unix time. None: now.
    """

    def __init__(
        self,
        folder: Path,
        command: str,
        writes: bool = True,
        page: Callable[[Path, Status], object] = write_report,
        began: float | None = None,
    ) -> None:
        self.folder, self.writes, self.page = folder, writes, page
        now = time.time()
        last = read_status(folder) if writes else None
        before = spent(last) if last else 0.0
        self.status = Status(command=command, before=before, began=now if began is None else began, written=now)
        self._next_status = 0.0  # earliest time of the next write of the status, on the clock of time.monotonic()
        self._drawn, self._took = -inf, 0.0  # when the last page was finished (same clock), and the seconds it took
        self._warned = False

    @property
    def seconds(self) -> float:
        """The duration of the run so far in seconds, including its earlier starts."""
        return self.status.before + time.time() - self.status.began

    def __enter__(self) -> Live:
        self(self.status)
        return self

    def __call__(self, status: Status) -> None:
        begins = status.phase != self.status.phase
        last = self.status
        self.status = replace(status, command=last.command, before=last.before, began=last.began, written=time.time())
        now = time.monotonic()
        if begins or now >= self._next_status:
            self._next_status = now + 1.0
            pause = PHASE_SHARE * self._took if begins else max(SECONDS, SHARE * self._took)
            self._write(page=now >= self._drawn + pause and self.status.phase != "report")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self.writes:
                with suppress(OSError):
                    (self.folder / NAME).unlink(missing_ok=True)
            return
        by_hand = not issubclass(kind, Exception)  # whether a signal or Ctrl-C ended the run
        why = "" if by_hand else next(iter(str(error).splitlines()), kind.__name__)[:500]
        self.status = replace(
            self.status,
            state="interrupted" if by_hand else "failed",
            why=why,
            left=None,
            whole=None,
            written=time.time(),
        )
        self._write(page=True)

    def _write(self, page: bool) -> None:
        if not self.writes:
            return
        began = time.monotonic()
        try:
            write_status(self.status, self.folder)
            if page:
                self.page(self.folder, self.status)
        except Exception as error:
            full = isinstance(error, OSError) and no_room(error, self.folder)  # for a full disk, train.py has a message
            if not full and not self._warned:
                logger.warning("%s: the HTML page of the running run cannot be written (%r)", self.folder, error)
                self._warned = True
        if page:
            self._drawn = time.monotonic()
            self._took = self._drawn - began
