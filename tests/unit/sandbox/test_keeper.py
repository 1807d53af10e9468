"""The keeper of sandlock answers when nothing is left below it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from turnwise.sandbox.base import Limits, NoSandboxError
from turnwise.sandbox.detect import open_sandbox

pytestmark = pytest.mark.slow

# A keeper that has a child beside the command, as if an orphan had just come to it; and one that cannot kill it, as
# where a process hangs in the kernel. Its last line says whether the child still runs.
KEEPER = """
import subprocess
from turnwise.sandbox import keeper
orphan = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
{}
keeper.main()
print(keeper.os.path.exists(f"/proc/{{orphan.pid}}"))
orphan.kill()
"""


def answer(how: str, folder: Path) -> tuple[dict[str, object], bool]:
    try:
        open_sandbox("sandlock").close()
    except NoSandboxError as error:
        pytest.skip(str(error))
    request = {"command": "echo ok", "folder": str(folder), "readable": [], "path": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", KEEPER.format(how)],
        input=json.dumps({**request, "limits": asdict(Limits(seconds=20, memory_mib=160, processes=8))}) + "\n",
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=60,
    )
    reply, runs = done.stdout.splitlines()
    return json.loads(reply), runs == "True"


def test_an_orphan_is_killed_before_the_answer(tmp_path: Path) -> None:
    reply, runs = answer("", tmp_path)
    assert reply["status"] == 0 and not runs


def test_what_cannot_be_killed_is_a_fault(tmp_path: Path) -> None:
    reply, runs = answer("keeper._SWEEP, keeper._signal = 0.2, lambda pid, number: None", tmp_path)
    assert "did not end within 0.2 s" in str(reply["fault"]) and runs
