"""One progress bar over all phases of a run, with a remaining time that says when it does not know.

The time left of the running phase comes from its own pace; that of later phases from a measured twin (the evaluation after
training takes what the one before it took). As long as a later phase has no measure, the bar says "more than".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import lightning as L
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from turnwise.console import Terminal
from turnwise.text import plain

if TYPE_CHECKING:
    from turnwise.training.recorder import Recorder

QUIET_SECONDS = 15.0  # between lines where the output is no terminal


class Phases:
    """Args:
    names: the phases in order; ``twins`` maps a later phase to the earlier one that takes as long.
    console: where to draw; a line every ``QUIET_SECONDS`` if it is no terminal.
    """

    def __init__(self, names: list[str], twins: dict[str, str] | None = None, console: Terminal | None = None) -> None:
        self.names, self.twins = names, twins or {}
        self.console = console or Terminal(stderr=True)
        self.seconds: dict[str, float] = {}
        self._said = 0.0
        self._bar = Progress(
            TextColumn("{task.description:<18}", style="bold", markup=False),
            BarColumn(bar_width=28),
            TextColumn("{task.completed:>6.0f}/{task.total:<6.0f}"),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> Phases:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def tell(self, line: str) -> None:
        """A line above the bar."""
        self.console.print(line)

    @contextmanager
    def phase(self, name: str, total: int) -> Iterator[Callable[..., None]]:
        """Run a phase of ``total`` steps; yields ``advance(steps, note="")``. Its time is added to ``seconds``."""
        task = self._bar.add_task(plain(name), total=total, left="...", note="")
        began, done = time.monotonic(), 0.0
        resumed = 0.0

        def advance(steps: float, note: str = "", already: bool = False) -> None:
            nonlocal done, resumed
            done += steps
            resumed += steps if already else 0.0  # work found done says nothing of the pace
            left = self._left(name, time.monotonic() - began, done - resumed, total - done)
            self._bar.update(task, completed=done, left=left, note=plain(note))
            self._line(f"{name}: {done:.0f} of {total}, left {left} {note}")

        try:
            yield advance
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
            self._bar.update(task, left="-")

    def _left(self, name: str, elapsed: float, done: float, missing: float) -> str:
        if done <= 0:
            return "..."
        left, known = elapsed / done * missing, True
        for later in self.names[self.names.index(name) + 1 :] if name in self.names else []:
            twin = self.twins.get(later)
            measured = elapsed + elapsed / done * missing if twin == name else self.seconds.get(twin or "")
            known &= measured is not None
            left += measured or 0.0
        clock = f"{int(left) // 60}:{int(left) % 60:02d}"
        return clock if known else f"more than {clock}"

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if not self.console.is_terminal and now - self._said >= QUIET_SECONDS:
            self._said = now
            self.console.print(text.rstrip())


class Advance(L.Callback):
    """Moves the run's bar by one iteration, with the reward beside it."""

    def __init__(self, advance: Callable[..., None], recorder: Recorder) -> None:
        self.advance, self.recorder = advance, recorder

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch:
            self.advance(trainer.current_epoch, already=True)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        reward = self.recorder.reward
        self.advance(1, note="" if reward is None else f"reward {reward:.3f}")
