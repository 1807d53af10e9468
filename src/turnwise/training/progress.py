"""Shows the progress of a run: a bar or lines in the terminal, and its loggers, such as Weights & Biases. Loggers start before
any computation, so that errors are found at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
from hydra.core.hydra_config import HydraConfig
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.loggers import Logger, WandbLogger
from omegaconf import DictConfig, OmegaConf
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from turnwise.config.schema import build
from turnwise.console import Terminal
from turnwise.errors import InputError
from turnwise.runs.result_file import ResultError, read_result
from turnwise.text import plain
from turnwise.training.distributed import in_multirun

if TYPE_CHECKING:
    from turnwise.training.recorder import Recorder


QUIET_SECONDS = 15.0  # least seconds between two progress lines if no progress bar is drawn


class Phases:
    """Shows the progress of a run's phases, and measures the duration of each. If the console is no terminal, or several
    runs share it (``label``), lines are printed in place of a bar.
    """

    def __init__(self, console: Terminal | None = None, label: str = "") -> None:
        self.console = console or Terminal(stderr=True)
        self.label = f"{label}: " if label else ""
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
        """Shows the progress of a phase of ``total`` steps (0: unknown) while the ``with`` block runs, which gets a function
        ``advance(steps, note="", already=False)``. ``already``: an earlier start of the run did these steps.
        """
        task = self._bar.add_task(plain(name), total=total, note="", visible=total > 0)
        began, done, resumed = time.monotonic(), 0.0, 0.0

        def advance(steps: float, note: str = "", already: bool = False) -> None:
            nonlocal done, resumed
            done += steps
            resumed += steps if already else 0.0  # steps of an earlier start do not count for the time per step
            paced = done - resumed
            # the first step also compiles kernels, and side by side with others takes as long as all: wait for a tenth
            known = paced > 0 and 10 * paced >= total - resumed and done < total
            seconds = (time.monotonic() - began) / paced * max(total - done, 0) if known else 0
            left = f"about {timedelta(seconds=5 * max(1, round(seconds / 5)))} left" if known else ""
            self._bar.update(task, completed=done, note=plain(note))
            self._line(", ".join(filter(None, [f"{name}: {done:.0f} of {total}", left, note])))

        try:
            yield advance
            self._bar.update(task, completed=total)  # steps that an earlier run had done, such as demonstrations
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if not self._drawn and now - self._printed >= QUIET_SECONDS:
            self._printed = now
            self.log(text)


def progress_callback(advance: Callable[..., None], recorder: Recorder) -> L.Callback:
    """Returns a callback that advances the progress bar after each iteration and shows the mean reward."""

    def resumed(trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.current_epoch:
            advance(trainer.current_epoch, already=True)

    def done(trainer: L.Trainer, module: L.LightningModule) -> None:
        reward, of = recorder.last.get("train/reward_mean"), "" if recorder.most is None else f" of {recorder.most:g}"
        advance(1, note="" if reward is None else f"reward {reward:.3f}{of}")

    return LambdaCallback(on_train_start=resumed, on_train_epoch_end=done)


# -- loggers -----------------------------------------------------------------------------------------------------------


LOCAL = ("offline", "dryrun", "disabled")  # modes in which no data leaves this machine
TAG = 64  # greatest length of a tag in W&B


class Wandb(WandbLogger):
    """Logs a run to Weights & Biases (W&B), with its files in ``save_dir/wandb``. The environment variable ``WANDB_MODE``
    (online, offline, disabled) overrides ``offline``. An online run stores its W&B id, so that a resumed run continues
    it; without a key, or if the server refuses it, an InputError is raised.
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
    ) -> None:
        import wandb  # imported here because the import takes 0.8 s, and a run without this logger does not need it

        mode: Any = os.environ.get("WANDB_MODE") or ("offline" if offline else "online")
        table = (group or "").rpartition("/")[0]
        known = Path(save_dir) / "wandb" / "run-id.txt"
        try:
            if mode not in LOCAL and not wandb.login(prompt=False):
                raise ValueError("this machine has no key; run `wandb login` or set WANDB_API_KEY")
            known.parent.mkdir(parents=True, exist_ok=True)
            run = wandb.init(
                project=project, entity=entity, name=name, group=group, job_type=job_type,
                tags=[*tags, *([table] if 0 < len(table) <= TAG else [])], notes=notes,
                dir=save_dir, mode=mode, resume="allow",
                id=known.read_text().strip() if mode not in LOCAL and known.exists() else None,
            )  # fmt: skip
        except (wandb.errors.Error, ValueError) as error:  # ValueError: the key is malformed
            wandb.teardown()
            raise InputError(
                f"W&B refused the run: {' '.join(str(error).split())[:400]}. With logger.wandb.offline=true (and without "
                "WANDB_MODE=online) the run stays on this machine, and `wandb sync` uploads it later"
            ) from error
        if mode not in LOCAL:
            known.write_text(f"{run.id}\n")
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        super().__init__(experiment=run)


@contextmanager
def started_loggers(cfg: DictConfig, first: bool, log: Callable[[str], None]) -> Iterator[list[Logger]]:
    """Starts the loggers of the configuration, in the first process, yields them, and closes them when the ``with`` block
    ends. W&B gets the run's configuration at the start, and its result at the end.
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
                    _end_logger(logger, Path(cfg.paths.out), failed)
            except Exception as error:  # W&B's process may have received the signal that ends this one
                log(f"W&B did not end the run properly ({type(error).__name__}: {error})")


def _end_logger(logger: WandbLogger, folder: Path, failed: bool) -> None:
    run: Any = logger.experiment
    with suppress(ResultError):
        result = read_result(folder).model_dump(mode="json", exclude_none=True)
        keys = (
            "in_domain",
            "ood",
            "cpu_seconds",
            "rollout_turns",
            "rollout_tokens",
            "seconds",
            "config_hash",
            "commit",
        )
        run.summary.update({name: result[name] for name in keys if name in result})
    run.finish(exit_code=int(failed))


def label_of(name: str, seed: int) -> str:
    """Returns the label at the start of each log line of this run. Empty unless several runs share the terminal."""
    # the basic launcher runs one run after the other
    alone = not in_multirun() or "basic_launcher" in str(HydraConfig.get().launcher._target_)
    return "" if alone else f"{name}/seed{seed}"
