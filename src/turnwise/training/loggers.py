"""Starts a run's loggers, such as Weights & Biases, before any computation, so that errors are found at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, WandbLogger
from omegaconf import DictConfig, OmegaConf

from turnwise.config.schema import build
from turnwise.errors import InputError
from turnwise.runs.json_lines import json_object, paths_of
from turnwise.runs.result_file import ResultError, read_result

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
        rollouts: int = 200,
    ) -> None:
        import wandb  # imported here because the import takes 0.8 s, and a run without this logger does not need it

        if rollouts < 0:
            raise ValueError(f"rollouts must be at least 0 (the number of rollouts in a table), got {rollouts}")
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
