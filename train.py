"""Trains a policy: composes and checks the configuration, claims the run's folder, trains and evaluates.

With ``sweep=NAME``, each row of a sweep file is executed as a run (docs/sweeps.md). Exit status: 0: the run is done; 1: the
run stopped or the machine failed; 2: the configuration or the data cannot be used; 130: SIGINT; 143: SIGTERM.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

try:
    import hydra
except ModuleNotFoundError:
    print("train.py: this Python lacks its libraries; `make setup` installs them, `. .venv/bin/activate` enters them")
    raise SystemExit(2) from None
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from turnwise import exits
from turnwise.config.check import check_config
from turnwise.config.machine import check_inputs, check_machine, opening
from turnwise.config.overrides import is_sweep, refuse_misuse, refuse_overrides
from turnwise.config.schema import ConfigError, register
from turnwise.runs.run_folder import claim, is_first

CONF = Path(__file__).resolve().parent / "conf"


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def job(cfg: DictConfig) -> None:
    """Executes one run. Slow libraries are imported after the configuration has been accepted."""
    began, several = time.time(), HydraConfig.get().mode == RunMode.MULTIRUN
    with exits.exit_of_run(cfg):
        if not several and HydraConfig.get().sweeper.get("params"):
            raise ConfigError(["hydra.sweeper.params: these are the values of several runs; start the runs with -m"])
        check_config(cfg)
        if is_first():  # about a second after the start; what follows takes longer
            print(opening(cfg), flush=True)
        check_machine(cfg)
        if not several:  # a process of a sweep may execute several runs
            import psutil  # only here, because it delays the help and refusals

            began = psutil.Process().create_time()
        with claim(cfg) as folder:
            if not folder.finished:
                env = check_inputs(cfg)
                from turnwise.training.loop import run

                check_config(cfg)  # again, because now the parts that need torch can be checked
                run(cfg, began, env)
            elif is_first():
                from turnwise.runs.page import write_report
                from turnwise.runs.read_run import read_run

                print(f"This run has finished: {write_report(read_run(folder.path))} (fresh=true starts it again)")


def main() -> None:
    register(CONF)
    with exits.exit_of_command(CONF):
        refuse_misuse(sys.argv[1:])
        if is_sweep(sys.argv[1:]):
            from turnwise_study.sweeps.jobs import for_hydra

            sys.argv[1:] = for_hydra(sys.argv[1:], CONF)
        refuse_overrides(sys.argv[1:], CONF)
        if {"--cfg", "-c"} & {argument.partition("=")[0] for argument in sys.argv[1:]} and "--resolve" not in sys.argv:
            sys.argv.append("--resolve")  # so that the numbers of ${follow:...} are shown
        job()


if __name__ == "__main__":
    main()
