"""Shows the progress of a run: a bar in the terminal, ``status.json`` in the run's folder, and its loggers, such as
Weights & Biases. Loggers start before any computation, so that errors are found at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import lightning as L
from annotated_types import Ge
from lightning.pytorch.loggers import Logger, WandbLogger
from omegaconf import DictConfig, OmegaConf
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from turnwise.config.schema import build
from turnwise.console import Terminal
from turnwise.errors import InputError
from turnwise.runs.archive import json_object, paths_of
from turnwise.runs.result_file import (
    NAME,
    ResultError,
    Status,
    read_result,
    read_status,
    remaining,
    spent,
    write_status,
)
from turnwise.text import plain

if TYPE_CHECKING:
    from turnwise.training.recorder import Recorder


QUIET_SECONDS = 15.0  # least seconds between two progress lines if no progress bar is drawn


class StatusWriter:
    """Writes the status of a run to ``status.json``, at most once a second. Errors while writing never end the run.

    :class:`Phases` calls the object with each new status. At the end of a ``with`` block, the object removes
    ``status.json``, or after an error writes the final status.

    Args:
        command: the command line that resumes the run.
        writes: whether this process writes the run's files.
        began: when this start of the run began, as a Unix time. None: now.
    """

    def __init__(self, folder: Path, command: str, writes: bool = True, began: float | None = None) -> None:
        self.folder, self.writes = folder, writes
        now = time.time()
        last = read_status(folder) if writes else None
        began = now if began is None else began
        self.status = Status(command=command, before=spent(last) if last else 0.0, began=began, written=now)
        self._next = 0.0  # earliest time of the next write, on the clock of time.monotonic()

    @property
    def seconds(self) -> float:
        """The duration of the run so far in seconds, including its earlier starts."""
        return self.status.before + time.time() - self.status.began

    def __enter__(self) -> StatusWriter:
        self(self.status)
        return self

    def __call__(self, status: Status) -> None:
        begins, now = status.phase != self.status.phase, time.monotonic()
        same = {name: getattr(self.status, name) for name in ("command", "before", "began")}
        self.status = replace(status, **same, written=time.time())
        if begins or now >= self._next:
            self._next = now + 1.0
            self._write()

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
        self._write()

    def _write(self) -> None:
        if self.writes:
            with suppress(OSError):
                write_status(self.status, self.folder)


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
            # the first step also compiles kernels, and side by side with others takes as long as all: wait for a tenth
            known = paced > 0 and 10 * paced >= total - resumed and done < total
            left = (time.monotonic() - began) / paced * max(total - done, 0) if known else None
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
        reward, most = self.recorder.last.get("train/reward_mean"), self.recorder.most
        of = "" if most is None else f" of {most:g}"
        self.advance(1, note="" if reward is None else f"reward {reward:.3f}{of}")


# -- loggers -----------------------------------------------------------------------------------------------------------


ROLLOUT_COLUMNS: list[str | int] = ["run", "seed", "iteration", "state", "leaf", "turns", "total", "actions", "expert"]
LOCAL = ("offline", "dryrun", "disabled")  # modes in which no data leaves this machine
TAG = 64  # greatest length of a tag in W&B
AFTERWARDS = (
    "or keep the run on this machine (logger.wandb.offline=true, or WANDB_MODE=offline) and upload it with `wandb sync`"
)


def logged_in() -> bool:
    """Returns whether the W&B package finds an API key, without a prompt (``wandb login``, WANDB_API_KEY or netrc)."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    import wandb  # loading it takes 0.8 s

    try:
        return bool(wandb.login(prompt=False))
    except wandb.errors.Error:
        return False


class Wandb(WandbLogger):
    """Logs a run to Weights & Biases (W&B). The environment variable ``WANDB_MODE`` (online, offline, disabled)
    overrides ``offline``.

    Args:
        project, entity, name, group, job_type, tags, notes: labels of the run in W&B.
        save_dir: folder in which W&B writes its folder ``wandb/``. An online run stores its W&B id in ``wandb/``, so
            that a resumed run continues the W&B run with this id.
        offline: whether W&B only writes files on this machine and sends nothing.
        rollouts: greatest number of rows (leaves of recorded trees) in the table ``rollouts``. 0: no table.

    Raises:
        InputError: the mode is online, but there is no API key, or the server refuses the key or does not answer.
    """

    def __init__(
        self,
        project: str,
        save_dir: str,
        name: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
        offline: bool = True,
        rollouts: Annotated[int, Ge(0)] = 200,
    ) -> None:
        import wandb  # imported here because the import takes 0.8 s, and a run without this logger does not need it

        mode: Any = os.environ.get("WANDB_MODE") or ("offline" if offline else "online")
        if mode not in LOCAL and not logged_in():
            raise InputError(
                f"W&B is set to online (logger.wandb.offline={str(offline).lower()}, WANDB_MODE="
                f"{os.environ.get('WANDB_MODE', '')}), but this machine has no key: run `wandb login`, set WANDB_API_KEY, "
                f"{AFTERWARDS}"
            )
        table = (group or "").rpartition("/")[0]
        folder = Path(save_dir)
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / "wandb" / "run-id.txt"
        try:
            run = wandb.init(
                project=project, entity=entity, name=name, group=group, job_type=job_type,
                tags=[*tags, *([table] if 0 < len(table) <= TAG else [])], notes=notes,
                dir=str(folder), mode=mode, resume="allow",
                id=known.read_text().strip() if mode not in LOCAL and known.exists() else None,
            )  # fmt: skip
        except (wandb.errors.Error, ValueError) as error:  # ValueError: the key is malformed
            wandb.teardown()
            said = " ".join(str(error).split())
            raise InputError(
                f"W&B refused the run: {said[:400]}; correct the key or the server, {AFTERWARDS}"
            ) from error
        if mode not in LOCAL:
            known.parent.mkdir(exist_ok=True)
            known.write_text(f"{run.id}\n")
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        super().__init__(experiment=run)
        self.rollouts = rollouts


@contextmanager
def started(cfg: DictConfig, first: bool, log: Callable[[str], None]) -> Iterator[list[Logger]]:
    """Starts and yields the loggers of the configuration. The loggers are closed when the ``with`` block ends.

    W&B gets the run's configuration at the start, and its result and the last recorded rollouts at the end.

    Args:
        first: whether this is the first process of the run. The other processes have no loggers.
        log: is called with the errors of loggers that are closed. These errors do not end the run.

    Raises:
        InputError: a logger cannot be used.
    """
    loggers: list[Logger] = []
    failed = True
    try:
        for name, node in (cfg.logger or {}).items() if first else ():
            if node:
                loggers.append(build(cfg, f"logger.{name}"))
                if isinstance(loggers[-1], WandbLogger):
                    loggers[-1].experiment.config.update(OmegaConf.to_container(cfg, resolve=True))
        yield loggers
        failed = False
    finally:
        for logger in loggers:
            try:  # a sweep has many runs in one process, so this run must be closed before the next one begins
                if isinstance(logger, WandbLogger):
                    _end(logger, Path(cfg.paths.out), failed)
            except Exception as error:  # W&B's process may have received the signal that ends this one
                log(f"W&B did not end the run properly ({type(error).__name__}: {error})")


def _end(logger: WandbLogger, folder: Path, failed: bool) -> None:
    import wandb

    run: Any = logger.experiment
    try:
        rows = list(islice(rollout_rows(folder), getattr(logger, "rollouts", 0)))
        if rows:
            run.log({"rollouts": wandb.Table(columns=ROLLOUT_COLUMNS, data=rows)})
        try:
            result = read_result(folder).model_dump(mode="json", exclude_none=True)
        except ResultError:
            return
        kept = ("in_domain", "ood", "cpu_seconds", "rollout_turns", "rollout_tokens", "seconds")
        run.summary.update({name: result[name] for name in (*kept, "config_hash", "commit") if name in result})
    finally:
        run.finish(exit_code=int(failed))


def rollout_rows(folder: Path) -> Iterator[list[Any]]:
    """Yields a row (``ROLLOUT_COLUMNS``) for each leaf of a run's recorded rollout trees, latest iteration first."""
    files = sorted((folder / "rollouts").glob("*.jsonl"))
    lines = (line for file in reversed(files) for line in reversed(file.read_text(encoding="utf-8").splitlines()))
    for line in lines:
        tree = json_object(line)
        if tree is None:
            continue
        turns = tree["turns"]
        paths = paths_of(turns)
        totals = tree.get("rewards", {}).get("total") or [None] * len(paths)
        for path, total in zip(paths, totals, strict=False):
            actions = "\n".join(turns[i]["text"] for i in path)
            name, seed = folder.parent.name, folder.name.removeprefix("seed")
            state = tree["state"]["id"]
            yield [name, seed, tree["iteration"], state, path[-1], len(path), total, actions, tree.get("expert") or ""]
