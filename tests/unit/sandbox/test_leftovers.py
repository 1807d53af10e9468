"""What a sandbox leaves, and what the host does with a work folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from turnwise.sandbox import bubblewrap, cleanup
from turnwise.sandbox.bubblewrap import Bubblewrap
from turnwise.sandbox.folder_value import File
from turnwise.sandbox.sandbox import Limits


def _bubblewrap(limits: Limits) -> Bubblewrap:
    if why := bubblewrap.reason():
        pytest.skip(why)
    return Bubblewrap(limits)


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
import sys, threading, time
from turnwise.sandbox import cleanup
from turnwise.sandbox.sandbox import Limits
from turnwise.sandbox.bubblewrap import Bubblewrap
sandbox = Bubblewrap(Limits(seconds=60))
for _ in range(3):
    threading.Thread(target=sandbox.shell, args=("sleep 60", {}), daemon=True).start()
while len(cleanup.held(sandbox._mark)) < 3 or not sandbox._mark:
    time.sleep(0.01)
print(sandbox._mark, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("stuck", [False, True])
def test_nothing_of_a_killed_trainer_stays(stuck: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a bwrap waits for an outer half that died with the trainer, which a bwrap that never ends stands for."""
    if why := bubblewrap.reason():
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
        trainer.kill()
        trainer.communicate()
        deadline = time.monotonic() + 20
        while cleanup.held(mark):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_sandbox_that_is_closed_leaves_no_process_and_can_be_used_again() -> None:
    sandbox = _bubblewrap(Limits())
    marks = []
    for _ in range(2):
        assert sandbox.shell("pwd", {})[0].output == "/box\n"
        sandbox.python()
        marks.append(sandbox._mark)
        assert cleanup.held(marks[-1])
        sandbox.close()
        assert not cleanup.held(marks[-1])
    assert marks[0] != marks[1]


def test_commands_leave_nothing_in_the_hosts_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not after a kill -9 either, for there never is anything."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sandbox = _bubblewrap(Limits(seconds=20))
    sandbox.shell("echo x > /tmp/x; echo y > y", {})
    assert list(tmp_path.iterdir()) == []
    sandbox.close()


def test_a_file_that_a_snippet_left_open_is_closed(sandbox: Bubblewrap) -> None:
    _, state = sandbox.python().run("f = open('/usr/bin/env', 'rb'); x = 1")
    outcome, state = state.run("f.read(1)")
    assert "Bad file descriptor" in outcome.output
    assert state.run("x")[0].output == "1\n"


def test_the_host_looks_at_a_folder_only_when_nothing_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a command could put a link where a folder was, and the host would follow it."""
    sandbox = _bubblewrap(Limits(seconds=20))
    looks: list[str] = []
    running = False
    watch, read_tree = bubblewrap.watch, bubblewrap.read_tree

    def watched(*rest: Any) -> Any:
        nonlocal running
        running = True
        seen = watch(*rest)
        running = False
        return seen

    def read(*rest: Any) -> Any:
        assert not cleanup.held(sandbox._mark)
        return read_tree(*rest)

    for name in ("scandir", "chmod", "lstat", "readlink"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda *rest, _real=real, _name=name, **more: (
                (looks.append(_name) if running else None) or _real(*rest, **more)
            ),
        )
    monkeypatch.setattr(bubblewrap, "watch", watched)
    monkeypatch.setattr(bubblewrap, "read_tree", read)
    outcome, left = sandbox.shell("mkdir -m 0 closed; sleep 0.3; echo x > y", {})
    assert outcome.ok and left == {"closed": None, "y": File(b"x\n")}
    assert looks == []
    sandbox.close()
