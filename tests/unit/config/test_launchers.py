from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.configuration_files import READ

from turnwise.config import overrides as module
from turnwise.config.overrides import help_text, refuse_launcher, refuse_processes
from turnwise.config.schema import ConfigError, run_name

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize(
    ("launcher", "package"),
    [
        ("joblib_2", "hydra-joblib-launcher"),
        ("joblib", "hydra-joblib-launcher"),
        ("local_jobs", "hydra-submitit-launcher"),
    ],
)
def test_a_launcher_that_is_not_installed_says_what_to_install(
    launcher: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    for asked in ("-m", "sweep=pivotrl_tab4"):
        with pytest.raises(ConfigError, match=f"hydra/launcher={launcher}: .*pip install {package}"):
            refuse_launcher([asked, "method=sft", f"hydra/launcher={launcher}"], CONF)


@pytest.mark.skipif(not importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher"), reason="needs submitit")
def test_slurm_off_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["method=sft", "seed=0,1", "hydra/launcher=slurm_8gpu"]
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for asked in ("-m", "--multirun", "sweep=pivotrl_tab4"):
        with pytest.raises(ConfigError, match=r"hydra/launcher=slurm_8gpu: srun"):
            refuse_launcher([*line, asked], CONF)
    refuse_launcher([*line, "sweep=pivotrl_tab4", "--dry-run"], CONF)  # looks only
    refuse_launcher(["-m", "method=sft", "hydra/launcher=local_jobs"], CONF)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/srun")
    refuse_launcher(["-m", *line], CONF)


def test_help_lists_every_option_of_every_group_in_lines_that_fit() -> None:
    text = help_text(CONF, ["pivotrl_tab4"])
    listed = {word.strip(",:") for word in text.split()}
    assert {path.stem for path in CONF.glob("*/*.yaml") if path.parent.name != "sweep"} <= listed
    assert {"pivotrl_tab4", "tiny_tools"} <= listed
    assert {path.stem for path in (CONF / "hydra" / "launcher").glob("*.yaml")} <= listed
    assert not any(word.startswith("at/") for word in listed)  # nothing that a user chooses
    groups = text[text.index("Choose one option of each group") :]
    assert max(map(len, groups.splitlines())) <= 118


def test_debug_runs_differ_by_name_where_they_differ() -> None:
    from turnwise.config.schema import compose_config

    def name(*overrides: str) -> Any:
        return compose_config(overrides, CONF, read=READ).name

    assert name("method=sft", "debug=tiny") == "debug/sft"
    assert name("method=sft", "debug=tiny", "update.learning_rate=0.01") == "debug/sft/update.learning_rate-0.01"
    assert name("method=sft", "debug=tiny", "seed=3", "name=x") == "x"
    assert name("method=sft", "debug=overfit", "env=apibank") == "debug/overfit/sft/env-apibank"
    assert run_name("a", "debug=x,debugger=y") == "a/debug-x_debugger-y"
    assert run_name("a", "debug=x,debugger=y", "debug") == "a/debugger-y"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"RANK": "abc"}, "RANK='abc'"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
        ({"LOCAL_RANK": ""}, "LOCAL_RANK=''"),
        ({"SLURM_PROCID": "-1"}, "SLURM_PROCID='-1'"),
        ({"RANK": "1"}, "RANK=1 must be below the number of processes, 1"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 must be below the number of processes, 2"),
        (
            {"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
            "LOCAL_RANK=2 must be below the number of processes, 2",
        ),
    ],
)
def test_variables_that_no_launcher_sets_are_refused(variables: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        refuse_processes(variables)


def test_variables_of_torchrun_lightning_and_slurm_are_taken() -> None:
    torchrun = {"RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    lightning = {"NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "40123"}
    for variables in ({}, torchrun, lightning, {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NTASKS": "8"}):
        refuse_processes(variables)
