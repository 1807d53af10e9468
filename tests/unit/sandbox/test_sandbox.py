"""What the sandbox is for, apart from what it stops."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise_worlds.sandbox import sandbox as sandboxes
from turnwise_worlds.sandbox.folder_value import File, folder_tree
from turnwise_worlds.sandbox.sandbox import (
    Bubblewrap,
    CallResult,
    Limits,
    NoSandboxError,
    SandboxFault,
    open_sandbox,
)


def test_a_command_maps_a_folder_to_a_folder(sandbox: Bubblewrap) -> None:
    before = folder_tree({"a/x.txt": "one\n", "y.sh": "echo ran\n"})
    outcome, after = sandbox.shell("cat a/x.txt; mv a/x.txt b; chmod +x y.sh; ./y.sh; rmdir a; exit 3", before)
    assert (outcome.output, outcome.status, outcome.stopped, outcome.ok) == ("one\nran\n", 3, "", False)
    assert after == {"b": File(b"one\n"), "y.sh": File(b"echo ran\n", executable=True)}
    assert before == folder_tree({"a/x.txt": "one\n", "y.sh": "echo ran\n"})


def test_a_snippet_continues_a_state_and_shows_its_last_value(sandbox: Bubblewrap) -> None:
    code = "import math\nx = [1]\nprint('said')\nmath.floor(2.5)"
    outcome = sandbox.python((), code)
    assert (outcome.output, outcome.status) == ("said\n2\n", 0)
    assert sandbox.python((code,), "x = x + [2]; x").output == "[1, 2]\n"
    assert sandbox.python((code,), "None").output == ""


def test_branches_of_a_state_are_independent(sandbox: Bubblewrap) -> None:
    root = ("x = [0]",)
    left, right = (*root, "x.append(1)"), (*root, "x.append(2); y = 5")
    leaf = (*left, "x.append(3)")
    shown = [sandbox.python(before, "x").output for before in (root, left, right, leaf)]
    assert shown == ["[0]\n", "[0, 1]\n", "[0, 2]\n", "[0, 1, 3]\n"]
    assert "NameError" in sandbox.python(leaf, "y").output


def test_a_failing_bwrap_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = _bubblewrap(Limits())
    monkeypatch.setattr(sandbox, "_folders", ["/no/such/folder"])
    with pytest.raises(SandboxFault, match="no/such/folder"):
        sandbox.shell("echo", {})


def test_a_bwrap_that_does_not_come_to_the_command_in_time_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := sandboxes.why_no_sandbox():
        pytest.skip(why)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "bwrap").write_text("#!/bin/sh\nexec sleep 60\n")
        (Path(folder) / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", folder, prepend=os.pathsep)
        monkeypatch.setattr(sandboxes, "_START", 0.2)
        with pytest.raises(SandboxFault):
            Bubblewrap().shell("echo", {})


def test_a_host_that_cannot_write_is_a_fault(sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*rest: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(sandboxes, "write_tree", broken)
    with pytest.raises(SandboxFault):
        sandbox.shell("echo", {})


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxes.shutil, "which", lambda name: None)
    with pytest.raises(NoSandboxError, match=sandboxes.INSTALL) as error:
        open_sandbox()
    assert isinstance(error.value, InputError)


def _bubblewrap(limits: Limits) -> Bubblewrap:
    if why := sandboxes.why_no_sandbox():
        pytest.skip(why)
    return Bubblewrap(limits)


def test_a_snippet_that_hits_a_limit_spoils_no_later_one(hasty: Bubblewrap) -> None:
    for code in ("while True: pass", "b = bytearray(1 << 30)", "print('y' * (1 << 20))"):
        assert hasty.python(("x = 7",), code).status != 0
        outcome = hasty.python(("x = 7", code), "x")
        assert (outcome.output, outcome.status) == ("7\n", 0)


def test_a_snippet_that_raises_keeps_what_came_before(sandbox: Bubblewrap) -> None:
    code = "x = 1\nraise ValueError('no')\nx = 2"
    outcome = sandbox.python((), code)
    assert outcome.status == 1
    assert outcome.output.splitlines()[-1] == "ValueError: no"
    assert "<string>" not in outcome.output  # the program's own frame
    assert sandbox.python((code,), "x").output == "1\n"


def processes(sandbox: Bubblewrap) -> int:
    """How many bwraps of a sandbox are on this machine, outer and inner."""
    return len(alive(sandbox._mark))


def alive(mark: str) -> list[int]:
    pids = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = place.read_bytes().split(b"\0")
            if mark.encode() in words and b"-c" not in words[2:5]:  # not the cleaner
                pids.append(int(place.parent.name))
    return pids


def test_interpreters_end_with_their_snippets() -> None:
    sandbox = _bubblewrap(Limits(seconds=20))
    assert [sandbox.python((), f"{i}").output for i in range(2)] == ["0\n", "1\n"]
    assert processes(sandbox) == 1  # the program that ends the sandboxes of a killed trainer
    sandbox.close()
    assert sandbox.python(("x = 1",), "x").output == "1\n"  # a closed sandbox can be used again
    sandbox.close()


def test_a_snippet_that_the_host_has_to_end_is_not_repeated(hasty: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops its timer, and says that the first snippet ended the interpreter."""
    runs: list[str] = []
    run = hasty._run
    monkeypatch.setattr(hasty, "_run", lambda command, *rest: runs.append(command) or run(command, *rest))
    code = "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nopen('ended', 'w').write('0')\nwhile True: pass"
    assert hasty.python(("x = 1", "y = 2"), code) == CallResult("", None, "time") and len(runs) == 1


def test_the_largest_tree_that_is_kept_fits_again() -> None:
    sandbox = _bubblewrap(Limits(seconds=20, file_mib=1, folder_mib=1, files=50))
    tree = {f"f{i}": File(b"x" * (1 << 15)) for i in range(32)} | {f"g{i}": File(b"") for i in range(18)}
    outcome, left = sandbox.shell("for i in g*; do echo -n x > $i; done; rm f0; ls | wc -l", tree)
    assert (outcome.output, len(left)) == ("49\n", 49)
    outcome, again = sandbox.shell("head -c 32750 /dev/zero > f0; ls | wc -l", left)
    assert (outcome.output, len(again)) == ("50\n", 50)
    assert sandbox.shell("ls | wc -l", again)[0].output == "50\n"
    sandbox.close()


def test_a_tree_that_is_too_large_is_the_outcome_of_a_full_folder() -> None:
    sandbox = _bubblewrap(Limits(seconds=20, file_mib=1, folder_mib=1, files=1))
    tree = {f"f{i}": File(b"x" * (1 << 20)) for i in range(2)}
    outcome, left = sandbox.shell("echo ran", tree)
    assert (outcome.output, outcome.stopped, left) == ("", "disk", tree)
    sandbox.close()


TRAINER = """
import threading, time
from turnwise_worlds.sandbox.sandbox import Bubblewrap, Limits
sandbox = Bubblewrap(Limits(seconds=60))
for _ in range(3):
    threading.Thread(target=sandbox.shell, args=("sleep 60", {}), daemon=True).start()
threading.Thread(target=sandbox.python, args=((), "import time; time.sleep(60)"), daemon=True).start()
while not sandbox._mark:
    time.sleep(0.01)
time.sleep(1)
print(sandbox._mark, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("stuck", [False, True])
def test_nothing_of_a_killed_trainer_stays(stuck: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a bwrap waits for an outer half that died with the trainer, which a bwrap that never ends stands for."""
    if why := sandboxes.why_no_sandbox():
        pytest.skip(why)
    with tempfile.TemporaryDirectory() as folder:
        if stuck:
            Path(folder).chmod(0o755)
            (Path(folder) / "bwrap").write_text("#!/bin/sh\nwhile :; do sleep 1; done\n")
            (Path(folder) / "bwrap").chmod(0o755)
            monkeypatch.setenv("PATH", folder, prepend=os.pathsep)
        trainer = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True)
        assert trainer.stdout is not None
        mark = trainer.stdout.readline().strip()
        assert alive(mark)
        trainer.kill()
        trainer.communicate()
        deadline = time.monotonic() + 20
        while alive(mark):
            assert time.monotonic() < deadline
            time.sleep(0.05)
