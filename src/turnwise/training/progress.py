"""Shows the progress of a run: a bar in the terminal, ``status.json`` in the run's folder, and the run's HTML page."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import lightning as L
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from turnwise.console import Terminal
from turnwise.files import no_room
from turnwise.runs.result_file import Result
from turnwise.runs.status_file import NAME, Status, read_status, remaining, spent, write_status
from turnwise.text import plain

if TYPE_CHECKING:
    from turnwise.training.recorder import Recorder

logger = logging.getLogger(__name__)

QUIET_SECONDS = 15.0  # least seconds between two progress lines if no progress bar is drawn
# least pause between two updates of the page, in seconds and in durations of an update
PAGE_SECONDS, PAGE_SHARE = 5.0, 20


class Pages(Protocol):
    """Shows a run to people, such as the module :mod:`turnwise_study.run_page`, which a run itself does not import."""

    def write_report(self, folder: Path, status: Status | None = None) -> Path: ...  # while the run is under way

    def write_pages(self, folder: Path) -> Path: ...  # at its end; returns the page to open

    def print_summary(self, result: Result, report: Path, console: Terminal) -> None: ...


class Live:
    """Writes the status of a run to ``status.json`` and to the run's HTML page. Errors while writing never end the run.

    :class:`Phases` calls the object with each new status. At the end of a ``with`` block, the object removes
    ``status.json``, or after an error writes the final status.

    Args:
        command: the command line that resumes the run.
        writes: whether this process writes the run's files.
        page: function that writes the run's page. None: there is no page.
        began: when this start of the run began, as a Unix time. None: now.
    """

    def __init__(
        self,
        folder: Path,
        command: str,
        writes: bool = True,
        page: Callable[[Path, Status], object] | None = None,
        began: float | None = None,
    ) -> None:
        self.folder, self.writes, self.page = folder, writes, page
        now = time.time()
        last = read_status(folder) if writes else None
        began = now if began is None else began
        self.status = Status(command=command, before=spent(last) if last else 0.0, began=began, written=now)
        self._next_status = self._next_page = 0.0  # earliest times of the next writes, on the clock of time.monotonic()
        self._warned = False

    @property
    def seconds(self) -> float:
        """The duration of the run so far in seconds, including its earlier starts."""
        return self.status.before + time.time() - self.status.began

    def __enter__(self) -> Live:
        self(self.status)
        return self

    def __call__(self, status: Status) -> None:
        begins, now = status.phase != self.status.phase, time.monotonic()
        same = {name: getattr(self.status, name) for name in ("command", "before", "began")}
        self.status = replace(status, **same, written=time.time())
        if begins or now >= self._next_status:
            self._next_status = now + 1.0
            self._write(page=now >= self._next_page and status.phase != "report")

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
        state = "interrupted" if by_hand else "failed"
        self.status = replace(self.status, state=state, why=why, left=None, written=time.time())
        self._write(page=True)

    def _write(self, page: bool) -> None:
        if not self.writes:
            return
        began = time.monotonic()
        try:
            write_status(self.status, self.folder)
            if page and self.page is not None:
                self.page(self.folder, self.status)
        except Exception as error:
            full = isinstance(error, OSError) and no_room(error, self.folder)  # for a full disk, train.py has a message
            if not full and not self._warned:
                logger.warning("%s: the HTML page of the running run cannot be written (%r)", self.folder, error)
                self._warned = True
        if page:
            now = time.monotonic()
            self._next_page = now + max(PAGE_SECONDS, PAGE_SHARE * (now - began))


class Phases:
    """Shows the progress of a run's phases and measures the duration of each phase.

    Args:
        console: the console on which the bar is drawn. If the console is not a terminal, lines are printed instead, at
            most one every ``QUIET_SECONDS``.
        label: label of a run that shares the terminal with other runs, else empty. With a label, each line starts with
            the label, and no bar is drawn.
        watch: is called with the run's status whenever the status changes.
    """

    def __init__(
        self,
        console: Terminal | None = None,
        label: str = "",
        watch: Callable[[Status], object] = lambda status: None,
    ) -> None:
        self.console = console or Terminal(stderr=True)
        self.label, self.watch = f"{label}: " if label else "", watch
        self.seconds: dict[str, float] = {}
        self._printed = 0.0
        self._drawn = self.console.is_terminal and not label
        self._bar = Progress(
            TextColumn("{task.description:<18}", style="bold", markup=False),
            BarColumn(bar_width=28),
            TextColumn("{task.completed:>6.0f}/{task.total:<6.0f}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=self.console,
            disable=not self._drawn,
        )

    def __enter__(self) -> Phases:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def log(self, line: str) -> None:
        self.console.print(self.label + line, soft_wrap=True)

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Callable[..., None]]:
        """Shows the progress of a phase of ``total`` steps while the ``with`` block runs.

        The block gets a function ``advance(steps, note="", already=False)``, which it calls after finished steps.
        ``already`` means that an earlier start of the run did these steps. The duration of the block is added to
        ``seconds[name]``.
        """
        task = self._bar.add_task(plain(name), total=total, note="")
        began, done, resumed = time.monotonic(), 0.0, 0.0
        self.watch(Status(phase=name, total=total))

        def advance(steps: float, note: str = "", already: bool = False) -> None:
            nonlocal done, resumed
            done += steps
            resumed += steps if already else 0.0  # steps of an earlier start do not count for the time per step
            paced = done - resumed
            left = (time.monotonic() - began) / paced * max(total - done, 0) if paced > 0 else None
            status = Status(phase=name, done=done, total=total, left=left)
            self._bar.update(task, completed=done, note=plain(note))
            self._line(", ".join(filter(None, [f"{name}: {done:.0f} of {total}", remaining(status), note])))
            self.watch(status)

        try:
            yield advance
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if not self._drawn and now - self._printed >= QUIET_SECONDS:
            self._printed = now
            self.log(text)


class Advance(L.Callback):
    """Callback that advances the progress bar after each iteration and shows the mean reward."""

    def __init__(self, advance: Callable[..., None], recorder: Recorder) -> None:
        self.advance, self.recorder = advance, recorder

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch:
            self.advance(trainer.current_epoch, already=True)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        reward = self.recorder.last.get("train/reward_mean")
        self.advance(1, note="" if reward is None else f"reward {reward:.3f}")
