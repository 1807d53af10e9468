"""Ends train.py with one message and an exit status, where Python and Hydra would show a traceback. With
``HYDRA_FULL_ERROR=1`` they show it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from turnwise.config.overrides import explain, took_no_job
from turnwise.env import EnvironmentFault
from turnwise.errors import Checked, InputError, RowsFailed, Stopped, in_own_code
from turnwise.files import no_room, out_of_reach
from turnwise.runs.run_folder import is_first, rank


@contextmanager
def exit_of_run(cfg: DictConfig) -> Iterator[None]:
    """Ends the process after an error of one run, or raises the error where a sweeper takes it."""
    for handler in logging.getLogger().handlers:  # Hydra's, which would tag the messages of every library
        handler.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        yield
    except Checked:
        with suppress(OSError):
            os.removedirs(cfg.paths.out)
        if is_first():
            print("Every check passed and nothing was trained. Without check=true, the same command starts the run.")
    except InputError as error:
        if developer():
            raise
        with suppress(OSError):
            os.removedirs(cfg.paths.out)  # removes the run's folder if it is empty
        if in_a_sweep():  # the sweeper reports the error and continues with the next run
            raise
        exit_with(str(error), 2)
    except (Stopped, EnvironmentFault, OSError) as error:
        message: str | None = str(error)
        if isinstance(error, EnvironmentFault):  # outside of rollouts, which begin again
            message = f"the environment failed in every attempt: {error}; correct it, and repeat this command"
        elif isinstance(error, OSError):
            message = no_room(error, cfg.paths.out)
        if message is None or developer() or in_a_sweep():
            raise
        exit_with(message, 1, own=True)
    except Exception as error:
        fault = in_own_code(error)
        if fault is None or developer() or in_a_sweep():
            raise
        exit_with(f"{fault}; correct it, and repeat this command (HYDRA_FULL_ERROR=1 shows the traceback)", 1, own=True)


@contextmanager
def exit_of_command(folder: Path) -> Iterator[None]:
    """Ends the process after any error that a user can cause or meet. ``folder`` is the configuration folder."""
    os.environ["TURNWISE_TRACEBACK"] = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise its errors instead of printing them
    # Hydra would compose the configuration once more, only to read hydra.mode from it. Only -m starts several runs here.
    patched: Any = Hydra
    patched.get_mode = lambda *_, **__: None
    listed = patched.format_config_groups  # of --help, without the groups at/..., which scale= sets
    patched.format_config_groups = lambda hydra, wanted: listed(
        hydra, lambda group: wanted(group) and not group.startswith("at/")
    )
    try:
        yield
    except BrokenPipeError:  # the reader of --help, such as head, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt as end:
        number = getattr(end, "number", signal.SIGINT)
        # a second Ctrl-C ends the process at once
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
        resumes = "everything saved so far is kept, and the same command resumes the run"
        exit_with(f"stopped by {number.name}: {resumes}", 128 + number)
    except Exception as error:
        if isinstance(error, RowsFailed):
            exit_with(str(error), 1)
        message, status = told_at_exit(error, sys.argv[1:], folder)
        if message is None or developer():
            raise
        exit_with(message, status)


def told_at_exit(error: Exception, arguments: Sequence[str], folder: Path) -> tuple[str | None, int]:
    """The message of an error and the exit status; None: it is no error of the user."""
    if isinstance(error, InputError):  # from a sweep, because a single run prints its own errors
        return str(error), 2
    if isinstance(error, HydraException | OmegaConfBaseException | YAMLError):
        return str(explain(error, arguments, folder)), 2
    if isinstance(error, OSError):
        return out_of_reach(error), 2
    refused = took_no_job(error)
    if refused or type(error).__module__.startswith("submitit."):
        what = "Slurm accepted no job" if refused else "a job ended without a result"
        return f"{what}: {' '.join(str(error).split())}", 2 if refused else 1
    return None, 1


def in_a_sweep() -> bool:
    """Returns whether a sweeper takes the run's error. If one of several Slurm tasks of a run of ``-m`` fails, it has
    to exit instead, so that Slurm ends the other tasks.
    """
    config = HydraConfig.get()
    alone = config.runtime.choices.get("hydra/sweeper") == "rows" or os.environ.get("SLURM_NTASKS", "1") == "1"
    return bool(config.mode == RunMode.MULTIRUN and alone)


def developer() -> bool:
    return os.environ.get("TURNWISE_TRACEBACK") == "1"


def exit_with(message: str, status: int, own: bool = False) -> NoReturn:
    """Prints the message and exits. By default, only the first process prints. With ``own``, every process prints,
    because the first process may not have the error.
    """
    if is_first():
        print(message, file=sys.stderr)
    elif own:
        print(f"process {rank()}: {message}", file=sys.stderr)
    raise SystemExit(status)
