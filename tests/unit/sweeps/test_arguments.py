"""The command line of a sweep as Hydra's."""

from __future__ import annotations

from pathlib import Path

from turnwise.sweeps.arguments import for_hydra, is_sweep


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
