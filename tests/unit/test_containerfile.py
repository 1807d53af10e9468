"""Containerfile, as far as it is tested without a container engine: what it copies is there, its commands are the README's."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = [line for line in (ROOT / "Containerfile").read_text().splitlines() if line and not line.startswith("#")]
STEPS = [tuple(line.split(maxsplit=1)) for line in LINES]
COMMANDS = [text for step, text in STEPS if step == "RUN"] + [
    " ".join(json.loads(text)) for step, text in STEPS if step == "CMD"
]


def test_the_python_is_one_that_the_package_takes() -> None:
    (image,) = (text for step, text in STEPS if step == "FROM")
    found = re.fullmatch(r"python:3\.(\d+)-slim-bookworm", image)
    assert found and f'requires-python = ">=3.{found[1]}"' in (ROOT / "pyproject.toml").read_text()


def test_what_it_installs_is_what_the_sandbox_and_make_need() -> None:
    (installed,) = (command for command in COMMANDS if command.startswith("apt-get"))
    assert {"bubblewrap", "make", "git"} <= set(installed.split())
    assert "apt-get install -y -qq bubblewrap" in (ROOT / "Makefile").read_text()


def test_its_commands_are_the_readmes() -> None:
    made = [command for command in COMMANDS if command.startswith("make ")]
    readme = (ROOT / "README.md").read_text()
    assert made == ["make setup", "make train"] and all(re.search(rf"^{command}\b", readme, re.M) for command in made)


def test_setup_finds_everything_that_was_copied_before_it(tmp_path: Path) -> None:
    """`make setup` comes before the rest is copied, so that a change of a page does not install everything again."""
    for step, text in STEPS[: STEPS.index(("RUN", "make setup"))]:
        if step == "COPY":
            *sources, to = text.split()
            for source in sources:
                place = ROOT / source
                if place.is_dir():
                    shutil.copytree(place, tmp_path / to, ignore=shutil.ignore_patterns("*"))
                else:
                    shutil.copy(place, tmp_path / to)
    told = subprocess.run(["make", "-n", "setup"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    named = set(re.findall(r"requirements[\w.-]*(?:txt|lock)", told.stdout))
    assert named and all((tmp_path / name).is_file() for name in named)
    project = (tmp_path / "pyproject.toml").read_text()
    assert all((tmp_path / name).is_file() for name in re.findall(r'"(README\.md|LICENSE)"', project))
    assert any(step == "COPY" and text == ". ." for step, text in STEPS[STEPS.index(("RUN", "make setup")) :])


@pytest.mark.parametrize("kept", ["src/turnwise", "conf", "scripts", "results", "train.py", ".git"])
def test_the_context_leaves_out_nothing_that_a_run_needs(kept: str) -> None:
    left_out = (ROOT / ".containerignore").read_text().split()
    assert not any(Path(kept).match(pattern) or Path(kept).parts[0] == pattern for pattern in left_out)
    assert {".venv*", "**/.venv*", "conf/local", ".git/config"} <= set(left_out) and "outputs/*" in left_out
