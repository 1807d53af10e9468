"""Trains a policy: composes and checks the configuration, claims the run's folder, trains and evaluates.

With ``sweep=NAME``, each row of a sweep file is executed as a run (docs/sweeps.md).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

try:
    import hydra
except ModuleNotFoundError:
    print("train.py: this Python lacks its libraries; `make setup` installs them, `. .venv/bin/activate` enters them")
    raise SystemExit(2) from None
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from turnwise.config.check import check_config
from turnwise.config.machine import check_inputs, check_machine, opening
from turnwise.config.overrides import (
    explain,
    help_text,
    is_sweep,
    refuse_config_of_many,
    refuse_launcher,
    refuse_overrides,
    refuse_processes,
    refuse_secrets,
    took_no_job,
)
from turnwise.config.schema import ConfigError, register
from turnwise.env import EnvironmentFault
from turnwise.errors import Checked, InputError, RowsFailed, Stopped
from turnwise.files import no_room, out_of_reach
from turnwise.runs.run_folder import claim, is_first, rank

CONF = Path(__file__).resolve().parent / "conf"


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def job(cfg: DictConfig) -> None:
    """Executes one run. Slow libraries are imported after the configuration has been accepted."""
    now = time.time()
    for handler in logging.getLogger().handlers:  # Hydra's, which would tag the messages of every library
        handler.setFormatter(logging.Formatter("%(message)s"))
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    try:
        if HydraConfig.get().mode == RunMode.RUN and HydraConfig.get().sweeper.get("params"):
            raise ConfigError(["hydra.sweeper.params: these are the values of several runs; start the runs with -m"])
        check_config(cfg)
        if is_first():  # about a second after the start; what follows takes longer
            print(opening(cfg), flush=True)
        check_machine(cfg)
        import psutil  # only here, because it delays the help and refusals

        # a process of a sweep may execute several runs
        began = now if HydraConfig.get().mode == RunMode.MULTIRUN else psutil.Process().create_time()
        with claim(cfg) as folder:
            from turnwise_study import run_page

            if folder.finished:
                if not is_first():
                    return
                print(f"This run has finished: {run_page.write_report(folder.path)} (fresh=true starts it again)")
                return
            env = check_inputs(cfg)
            from turnwise.training.loop import run

            check_config(cfg)  # again, because now the parts that need torch can be checked
            run(cfg, began, run_page, env)
    except Checked:
        with suppress(OSError):
            os.removedirs(cfg.paths.out)
        if is_first():
            print("Every check passed and nothing was trained. Without check=true, the same command starts the run.")
    except InputError as error:
        if _developer():
            raise
        with suppress(OSError):
            os.removedirs(cfg.paths.out)  # removes the run's folder if it is empty
        if _in_a_sweep():  # the sweeper reports the error and continues with the next run
            raise
        _stop(str(error), 2)
    except Stopped as error:
        if _developer() or _in_a_sweep():
            raise
        _stop(str(error), 1, own=True)
    except EnvironmentFault as error:  # outside of rollouts, which begin again
        if _developer() or _in_a_sweep():
            raise
        what = f"the environment failed in every attempt: {error}"
        _stop(f"{what}; correct it, and repeat this command", 1, own=True)
    except OSError as error:
        message = no_room(error, cfg.paths.out)
        if message is None or _developer() or _in_a_sweep():
            raise
        _stop(message, 1, own=True)


def _in_a_sweep() -> bool:
    """Returns whether a sweeper takes the run's error. If one of several Slurm tasks of a run of ``-m`` fails, it has
    to exit instead, so that Slurm ends the other tasks.
    """
    config = HydraConfig.get()
    alone = config.runtime.choices.get("hydra/sweeper") == "rows" or os.environ.get("SLURM_NTASKS", "1") == "1"
    return bool(config.mode == RunMode.MULTIRUN and alone)


def _developer() -> bool:
    return os.environ.get("TURNWISE_TRACEBACK") == "1"


def _stop(message: str, status: int, own: bool = False) -> NoReturn:
    """Prints the message and exits. By default, only the first process prints. With ``own``, every process prints,
    because the first process may not have the error.
    """
    if is_first():
        print(message, file=sys.stderr)
    elif own:
        print(f"process {rank()}: {message}", file=sys.stderr)
    raise SystemExit(status)


def main() -> None:
    """Runs the program.

    Exit status: 0: the run is done; 1: the run stopped or the machine failed; 2: the configuration or the data cannot
    be used; 130: SIGINT; 143: SIGTERM.
    """
    if {"--help", "-h"} & set(sys.argv[1:]):
        from turnwise_study.sweeps.sweep_file import sweep_names  # slow to import, like what a sweep needs below

        try:
            print(help_text(CONF, sweep_names(CONF)), flush=True)
        except BrokenPipeError:  # the reader, such as head, has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    register(CONF)
    os.environ["TURNWISE_TRACEBACK"] = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # makes Hydra raise its errors instead of printing them
    # Hydra would compose the configuration once more, only to read hydra.mode from it. Only -m starts several runs here.
    Hydra.get_mode = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        refuse_processes(os.environ)
    except ConfigError as error:
        _stop(str(error), 2, own=True)  # printed by every process
    try:
        refuse_secrets(sys.argv[1:])
        refuse_config_of_many(sys.argv[1:])
        refuse_launcher(sys.argv[1:], CONF)
        if is_sweep(sys.argv[1:]):
            from turnwise_study.sweeps.jobs import for_hydra  # imported here because it is slow to import

            sys.argv[1:] = for_hydra(sys.argv[1:], CONF)
        refuse_overrides(sys.argv[1:], CONF)
        if {"--cfg", "-c"} & {argument.partition("=")[0] for argument in sys.argv[1:]} and "--resolve" not in sys.argv:
            sys.argv.append("--resolve")  # so that the numbers of ${follow:...} are shown
        job()
    except KeyboardInterrupt as end:
        number = getattr(end, "number", signal.SIGINT)
        # a second Ctrl-C ends the process at once
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
        _stop(
            f"stopped by {number.name}: everything saved so far is kept, and the same command resumes the run",
            128 + number,
        )
    except RowsFailed as failed:
        _stop(str(failed), 1)
    except InputError as error:  # from a sweep, because a single run prints its own errors
        if _developer():
            raise
        _stop(str(error), 2)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        if _developer():
            raise
        _stop(str(explain(error, sys.argv[1:], CONF)), 2)
    except OSError as error:
        message = out_of_reach(error)
        if message is None or _developer():
            raise
        _stop(message, 2)
    except Exception as error:
        if not type(error).__module__.startswith("submitit.") or _developer():
            raise
        refused = took_no_job(error)
        message = "Slurm accepted no job" if refused else "a job ended without a result"
        _stop(f"{message}: {' '.join(str(error).split())}", 2 if refused else 1)


if __name__ == "__main__":
    main()
