"""No family of escapes gets out, neither from a run of this user nor from one of an ordinary user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest
from tests.security.escapes import FAMILIES, ROOT, as_ordinary_user, tried
from tests.security.ground import LIMITS, Ground, prepared

from turnwise_worlds.sandbox.sandbox import CallResult, NoSandboxError, open_sandbox


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    try:
        sandbox = open_sandbox(limits=LIMITS)
    except NoSandboxError as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        stack.callback(sandbox.close)
        yield prepared(sandbox, stack)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_stays_inside(name: str, ground: Ground) -> None:
    probes = tried(ground, name)
    assert probes and [probe for probe, got_out in probes.items() if got_out] == []


@pytest.mark.slow
def test_all_families_stay_inside_where_root_is_an_ordinary_user(ground: Ground) -> None:
    if os.getuid() != 0:
        pytest.skip("this run is an ordinary user's already")
    command = as_ordinary_user()
    if subprocess.run([*command[: command.index("-m")], "-c", f"open({__file__!r})"], check=False).returncode:
        pytest.skip("an ordinary user cannot run /usr/bin/python3, or cannot read this folder")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = json.loads(run.stdout.splitlines()[-1])
    assert (run.returncode, said["fell"], said["users"]) == (0, 0, ["ordinary"])
    assert said["families"] == len(FAMILIES) >= 40


def test_an_escape_is_counted(ground: Ground) -> None:
    """The suite sees what gets out: here, a sandbox that reads a file of the host."""

    class Leaky:
        name = "leaky"

        def shell(self, command: str, tree: object) -> object:
            run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
            return CallResult(run.stdout, run.returncode), {}

        def python(self, before: Sequence[str], code: str) -> CallResult:
            return inside.python(before, code)

    inside = ground.sandbox
    ground.sandbox = Leaky()  # type: ignore[assignment]
    try:
        assert tried(ground, "host.reading_the_host")["secret"]
    finally:
        ground.sandbox = inside


def test_the_command_refuses_a_family_that_is_not_there() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.security.escapes", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2 and "nothing" in run.stderr
