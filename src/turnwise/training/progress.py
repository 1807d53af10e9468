"""Draws a progress bar for the phases of a run, with the remaining time in words.

The remaining time of the running phase is estimated from its time per step so far. An evaluation begins with its long
episodes and ends with short answers, so its time per step is used only after half of the steps, and the estimate then
never exceeds the time that has passed. A phase is assumed to take at most as long as its *twin*, an earlier phase of
this start of the run: evaluation after training takes as long as evaluation before training. If no estimate is
possible, no time is shown. If the duration of a later phase is unknown, the estimated time of the run is a lower bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lightning as L
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from turnwise.console import Terminal
from turnwise.runs.status_file import Status, remaining
from turnwise.text import plain

if TYPE_CHECKING:
    from turnwise.training.recorder import Recorder

QUIET_SECONDS = 15.0  # least seconds between two progress lines if no progress bar is drawn


class Phases:
    """Shows the progress of a run's phases and measures the duration of each phase.

    Args:
        names: names of the phases, in order.
        twins: map from a later phase to the earlier phase that takes equally long.
        console: the console on which the bar is drawn. If the console is not a terminal, lines are printed instead, at
            most one every ``QUIET_SECONDS``.
        label: label of a run that shares the terminal with other runs, else empty. With a label, each line starts with
            the label, and no bar is drawn.
        watch: is called with the run's status whenever the status changes.
    """

    def __init__(
        self,
        names: list[str],
        twins: dict[str, str] | None = None,
        console: Terminal | None = None,
        label: str = "",
        watch: Callable[[Status], None] | None = None,
    ) -> None:
        self.names, self.twins = names, twins or {}
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
            TextColumn("{task.fields[left]}"),
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
        """Prints a line above the progress bar."""
        self.console.print(self.label + line, soft_wrap=True)

    @contextmanager
    def phase(self, name: str, total: int, alike: bool = True) -> Iterator[Callable[..., None]]:
        """Shows the progress of a phase of ``total`` steps while the ``with`` block runs.

        ``alike`` means that all steps take about equally long. Otherwise, the long steps come first.

        The block gets a function ``advance(steps, note="", already=False)``, which it calls after finished steps.
        ``already`` means that an earlier start of the run did these steps. The duration of the block is added to
        ``seconds[name]``.
        """
        task = self._bar.add_task(plain(name), total=total, left="", note="")
        began, done = time.monotonic(), 0.0
        resumed = 0.0
        self._report(Status(phase=name, total=total))

        def advance(steps: float, note: str = "", already: bool = False) -> None:
            nonlocal done, resumed
            done += steps
            resumed += steps if already else 0.0  # steps of an earlier start do not count for the time per step
            status = self._status(name, time.monotonic() - began, done, done - resumed, total, alike)
            left = remaining(status)
            self._bar.update(task, completed=done, left=left, note=plain(note))
            self._line(", ".join(filter(None, [f"{name}: {done:.0f} of {total}", left, note])))
            self._report(status)

        try:
            yield advance
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
            self._bar.update(task, left="")

    def _status(self, name: str, elapsed: float, done: float, paced: float, total: float, alike: bool) -> Status:
        """Returns the status of a phase, with the estimated remaining times of the phase and of the run.

        Args:
            elapsed: seconds since the phase began in this process.
            done: number of completed steps, including steps of an earlier start of the run.
            paced: number of steps that were completed within ``elapsed``.
        """
        earlier = self.seconds.get(self.twins.get(name, ""), 0.0)
        estimates = [earlier - elapsed] if earlier > elapsed else []  # a phase may outlast its twin
        if paced > 0 and (alike or 2 * paced >= total):
            estimates.append(elapsed / paced * max(total - done, 0))
        if not estimates:
            return Status(phase=name, done=done, total=total)
        left = min(estimates)
        whole, known = left, True
        for later in self.names[self.names.index(name) + 1 :] if name in self.names else []:
            twin = self.twins.get(later)
            measured = elapsed + left if twin == name else self.seconds.get(twin or "")
            known &= measured is not None or later == "report"  # the report takes only seconds
            whole += measured or 0.0
        return Status(phase=name, done=done, total=total, left=left, whole=whole, at_least=not known)

    def _report(self, status: Status) -> None:
        if self.watch is not None:
            self.watch(status)

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
