"""The command line of a sweep as Hydra's."""

from __future__ import annotations

from pathlib import Path

from turnwise.config.overrides import is_sweep
from turnwise.runs.result_file import typed
from turnwise_study.sweeps.jobs import for_hydra


def test_hydra_keeps_its_own_arguments(conf: Path) -> None:
    arguments = ["-m", "sweep=p_tab1", "hydra/launcher=submitit_local", "--dry-run", "data.file=it's ${x}"]
    assert is_sweep(arguments) and not is_sweep(["method=sft"])
    assert for_hydra(arguments, conf) == [
        "--multirun",
        "hydra/launcher=submitit_local",
        "hydra/sweeper=rows",
        "hydra.sweeper.arguments=['sweep=p_tab1','--dry-run','data.file=it\\'s \\${x}']",
        f"hydra.sweeper.folder='{conf}'",
    ]


def test_a_run_of_a_sweep_tells_the_command_that_was_typed_and_no_folder(conf: Path) -> None:
    arguments = ["sweep=p_tab1", "data.file=it's ${x}", "eval.tasks=[1,'b']", "hydra/launcher=joblib_2"]
    assert typed(for_hydra(arguments, conf)) == arguments
    assert typed(["-m", "method=sft,grpo"]) == ["-m", "method=sft,grpo"]
