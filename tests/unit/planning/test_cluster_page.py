"""docs/cluster.md: every step that a row names is there, and every command names what exists."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.overrides import is_sweep
from turnwise.config.schema import compose_config
from turnwise.experiments.command_line import ask
from turnwise.experiments.jobs import jobs
from turnwise.experiments.sweep_file import read_sweep, sweep_names
from turnwise.planning import missing_inputs
from turnwise.planning.missing_inputs import PAGE, steps_in

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
ANCHORS = {
    re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
}
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
PLACES = {"$DATA": "/data", "$(hostname)": "node1", "$TURNWISE_JUDGE_KEY": "key"}


def commands() -> Iterator[list[str]]:
    """The words of each command line; a variable before a command is one of its words."""
    for line in "".join(BLOCKS).splitlines():
        for variable, value in PLACES.items():
            line = line.replace(variable, value)
        words = shlex.split(line, comments=True)
        if words:
            yield words


COMMANDS = list(commands())


def of(program: str) -> list[list[str]]:
    """The arguments of every command that runs a program, by whichever interpreter."""
    found = [words[words.index(program) + 1 :] for words in COMMANDS if program in words]
    assert found, program
    return found


def script_of(path: str) -> ModuleType:
    """A script as a module."""
    name = f"cluster_page_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec and spec.loader
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def composed(arguments: list[str]) -> None:
    """Compose and check what a command would run; of a sweep, the first row that the command lets run."""
    if is_sweep(arguments):
        found = jobs(ask([word for word in arguments if not word.startswith(("hydra/", "hydra."))], ROOT / "conf"))
        ready = [job for job in found if not job.cannot]
        assert ready, "the command gives all that its rows need"
        arguments = [item for item in ready[0].overrides if item != ready[0].begin]
    check_config(compose_config(arguments, ROOT / "conf", read=READ))


@pytest.mark.parametrize("name", sweep_names(ROOT / "conf"))
def test_what_a_row_lacks_is_a_step_of_the_page(name: str) -> None:
    sweep = read_sweep(ROOT / "conf" / "sweep" / f"{name}.yaml")
    reasons = {reason for row in sweep.rows.values() if (reason := sweep.missing(row, "paper"))}
    for reason in reasons:
        assert steps_in([reason]), reason
        assert set(steps_in([reason])) <= ANCHORS, reason


def test_what_the_planner_misses_is_a_step_of_the_page() -> None:
    named = set(re.findall(r'at_step\(.*, "([\w-]+)"\)', Path(missing_inputs.__file__).read_text(encoding="utf-8")))
    assert len(named) >= 5
    assert named <= ANCHORS


def test_every_block_is_bash() -> None:
    for block in BLOCKS:
        done = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", of("train.py"), ids=lambda words: " ".join(words)[:60])
def test_training_commands_compose(arguments: list[str]) -> None:
    composed(arguments)


def test_the_arguments_of_scripts_are_theirs() -> None:
    scripts = sorted({word for words in COMMANDS for word in words if re.fullmatch(r"scripts/\w+\.py", word)})
    assert len(scripts) >= 5
    for script in scripts:
        module = script_of(script)
        for arguments in of(script) if hasattr(module, "parser") else ():
            module.parser().parse_args(arguments)


def test_the_options_of_hf_are_its() -> None:
    hf = [sys.executable, "-m", "huggingface_hub.cli.hf", "download", "--help"]
    told = subprocess.run(hf, capture_output=True, text=True, check=True, timeout=60).stdout
    used = {word for arguments in of("hf") for word in arguments if word.startswith("--")}
    assert {"--repo-type", "--local-dir"} <= used <= set(re.findall(r"--[\w-]+", told))
    assert all(arguments[0] == "download" for arguments in of("hf"))


def test_targets_and_requirements_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {arguments[0] for arguments in of("make")} <= set(targets)
    files = {words[place + 1] for words in COMMANDS for place, word in enumerate(words) if word == "-r"}
    assert files and all((ROOT / file).is_file() for file in files)


def test_jobs_of_the_script() -> None:
    assert subprocess.run(["bash", "-n", ROOT / "scripts/slurm/train.sbatch"], check=False).returncode == 0
    head = (ROOT / "scripts/slurm/train.sbatch").read_text(encoding="utf-8")
    for words in COMMANDS:
        if "sbatch" not in words:
            continue
        place = words.index("sbatch")
        assert (ROOT / words[place + 1]).is_file()
        composed(words[place + 2 :])
        for variable in words[:place]:
            name = variable.partition("=")[0]
            assert f"#   {name}" in head
