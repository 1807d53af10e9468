"""What the sandbox is for, apart from what it stops."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise.sandbox import bubblewrap, leash, python
from turnwise.sandbox.base import Limits, NoSandboxError, Sandbox, SandboxFault
from turnwise.sandbox.bubblewrap import Bubblewrap
from turnwise.sandbox.detect import open_sandbox
from turnwise.sandbox.tree import File, tree_of
from turnwise.sandbox.watch import Watched, children, descendants


def test_a_command_maps_a_folder_to_a_folder(sandbox: Sandbox) -> None:
    before = tree_of({"a/x.txt": "one\n", "y.sh": "echo ran\n"})
    outcome, after = sandbox.shell("cat a/x.txt; mv a/x.txt b; chmod +x y.sh; ./y.sh; rmdir a; exit 3", before)
    assert (outcome.output, outcome.status, outcome.stopped, outcome.ok) == ("one\nran\n", 3, "", False)
    assert after == {"b": File(b"one\n"), "y.sh": File(b"echo ran\n", executable=True)}
    assert before == tree_of({"a/x.txt": "one\n", "y.sh": "echo ran\n"})


def test_both_streams_come_in_their_order(sandbox: Sandbox) -> None:
    assert sandbox.shell("echo 1; echo 2 >&2; echo 3", {})[0].output == "1\n2\n3\n"


@pytest.mark.parametrize(
    "command", ["echo '", "\0", "\ud800", "", "  ", "exit 300", "kill -9 $$", "\x1b[2J", "x" * 200_000]
)
def test_odd_commands_are_outcomes(sandbox: Sandbox, command: str) -> None:
    outcome, after = sandbox.shell(command, {})
    assert outcome.stopped == "" and after == {}


def test_standard_input_is_empty(sandbox: Sandbox) -> None:
    assert sandbox.shell("cat; read x || echo end", {})[0].output == "end\n"


def test_a_snippet_continues_a_state_and_shows_its_last_value(sandbox: Sandbox) -> None:
    outcome, state = sandbox.python().run("import math\nx = [1]\nprint('said')\nmath.floor(2.5)")
    assert (outcome.output, outcome.status) == ("said\n2\n", 0)
    assert state.run("x = x + [2]; x")[0].output == "[1, 2]\n"
    assert state.run("None")[0].output == ""


def test_branches_of_a_state_are_independent(sandbox: Sandbox) -> None:
    _, root = sandbox.python().run("x = [0]")
    _, left = root.run("x.append(1)")
    _, right = root.run("x.append(2); y = 5")
    _, leaf = left.run("x.append(3)")
    shown = [state.run("x")[0].output for state in (root, left, right, leaf)]
    assert shown == ["[0]\n", "[0, 1]\n", "[0, 2]\n", "[0, 1, 3]\n"]
    assert "NameError" in leaf.run("y")[0].output


def test_a_snippet_that_raises_keeps_what_came_before(sandbox: Sandbox) -> None:
    outcome, state = sandbox.python().run("x = 1\nraise ValueError('no')\nx = 2")
    assert outcome.status == 1
    assert outcome.output.splitlines()[-1] == "ValueError: no"
    assert "state.py" not in outcome.output and "<string>" not in outcome.output
    assert state.run("x")[0].output == "1\n"


@pytest.mark.parametrize(
    "code", ["def", "\0", "\ud800", "(" * 500, "import sys; sys.exit(4)", "raise KeyboardInterrupt"]
)
def test_odd_snippets_are_outcomes(sandbox: Sandbox, code: str) -> None:
    outcome, state = sandbox.python().run(code)
    assert outcome.status not in (0, None)
    assert state.run("1")[0].ok


def test_states_that_are_let_go_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "STATES", 8)
    sandbox = _bubblewrap(Limits(seconds=20))
    state = sandbox.python()
    for i in range(20):  # more than are held at once
        _, state = state.run(f"x = {i}")
    assert state.run("x")[0].output == "19\n"
    with pytest.raises(SandboxFault, match="8 Python states"):
        held = [state.run("x")[1] for _ in range(20)]  # noqa: F841 (holding them is the point)
    sandbox.close()
    with pytest.raises(SandboxFault, match="closed"):
        state.run("x")
    assert sandbox.python().run("1")[0].ok  # a server of its own again
    sandbox.close()


def test_kept_states_share_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "KEPT_MIB", 100)
    sandbox = _bubblewrap(Limits(seconds=20))
    root = sandbox.python()
    runs = [root.run("x = b'a' * (40 << 20)") for _ in range(4)]
    assert [outcome.stopped for outcome, _ in runs] == ["", "", "memory", "memory"]
    assert runs[-1][1].run("1")[0].ok and runs[0][1].run("len(x)")[0].output == f"{40 << 20}\n"
    sandbox.close()


def _inside(sandbox: Bubblewrap) -> set[int]:
    """The numbers that the processes of the Python server have in its namespace."""
    assert sandbox._server is not None
    found = set()
    for pid in descendants(sandbox._server._process.pid):
        with suppress(OSError):
            found.add(int(Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()[-1]))
    return found


def test_each_snippet_has_a_process_of_its_own_which_was_there_before() -> None:
    sandbox = _bubblewrap(Limits(seconds=20))
    _, state = sandbox.python().run("import os")
    processes, waiting = [], 0
    for _ in range(20):
        time.sleep(0.02)
        before = _inside(sandbox)
        processes.append(int(state.run("os.getpid()")[0].output))
        waiting += processes[-1] in before
    assert len(set(processes)) == 20
    assert waiting > 0  # all but two where the machine is not busy
    sandbox.close()


def test_copies_made_ahead_are_few_and_go_with_their_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "COPIES", 3)
    sandbox = _bubblewrap(Limits(seconds=20))
    root = sandbox.python()
    states = [root.run(f"x = [{i}]")[1] for i in range(6)]
    for _ in range(2):  # in turn, so that copies are made and dropped
        states = [state.run("x.append(x[-1] + 1)")[1] for state in states]
    assert [state.run("x")[0].output for state in states] == [f"[{i}, {i + 1}, {i + 2}]\n" for i in range(6)]
    assert (
        len(_inside(sandbox)) <= 2 + 1 + 6 + 6 + 3 + 2
    )  # bwrap and broker, root, states, not yet let go, copies, late
    del states
    root.run("1")
    root.run("1")
    deadline = time.monotonic() + 20
    while len(_inside(sandbox)) > 2 + 1 + 2 + 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(_inside(sandbox)) <= 2 + 1 + 2 + 1
    sandbox.close()


def test_a_dead_server_is_a_fault_and_is_replaced() -> None:
    sandbox = _bubblewrap(Limits(seconds=20))
    _, state = sandbox.python().run("x = 1")
    assert sandbox._server is not None
    for child in children(sandbox._server._process.pid):
        os.kill(child, signal.SIGKILL)
    with pytest.raises(SandboxFault, match="died"):
        state.run("x")
    assert sandbox.python().run("1")[0].ok
    sandbox.close()


def test_a_failing_bwrap_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = _bubblewrap(Limits())
    monkeypatch.setattr(sandbox, "_folders", ["/no/such/folder"])
    with pytest.raises(SandboxFault, match="no/such/folder"):
        sandbox.shell("echo", {})


def test_the_server_refuses_to_run_outside_a_sandbox() -> None:
    command = [sys.executable, "-I", "-c", python.source(), "{}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1 and "process 1 of a sandbox" in run.stderr


def test_a_bwrap_that_does_not_come_to_the_command_in_time_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := bubblewrap.reason():
        pytest.skip(why)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "bwrap").write_text("#!/bin/sh\nexec sleep 60\n")
        (Path(folder) / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", folder, prepend=os.pathsep)
        monkeypatch.setattr(bubblewrap, "_START", 0.2)
        with pytest.raises(SandboxFault, match=r"0\.2 s"):
            Bubblewrap().shell("echo", {})


def test_a_bwrap_that_ends_without_a_report_is_a_fault() -> None:
    with pytest.raises(SandboxFault, match="words"):
        bubblewrap._judged(Watched(b"words", ""), '{ "child-pid": 7 }\n')


def test_a_host_that_cannot_write_is_a_fault(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*rest: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(bubblewrap, "write_tree", broken)
    with pytest.raises(SandboxFault, match="Input/output error"):
        sandbox.shell("echo", {})


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


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    with pytest.raises(NoSandboxError, match=bubblewrap.INSTALL) as error:
        open_sandbox()
    assert isinstance(error.value, InputError)
    for other in ("docker", "sandlock"):
        with pytest.raises(ValueError, match=other):
            open_sandbox(other)  # type: ignore[arg-type]


def test_a_first_try_that_is_killed_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := bubblewrap.reason():
        pytest.skip(why)
    with tempfile.TemporaryDirectory() as folder:  # whoever owns pytest's folders, bwrap is started as nobody
        place = Path(folder)
        place.chmod(0o777)
        (place / "bwrap").write_text(
            f'#!/bin/sh\n[ -e {place}/once ] || {{ touch {place}/once; kill -9 $$; }}\nexec {shutil.which("bwrap")} "$@"\n'
        )
        (place / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", folder, prepend=os.pathsep)
        sandbox = open_sandbox()
        sandbox.close()
        assert (place / "once").exists()


@pytest.mark.parametrize("field", ["seconds", "memory_mib", "processes", "output_kib"])
def test_limits_are_above_nothing(field: str) -> None:
    with pytest.raises(ValueError, match=f"limits.{field}"):
        Limits(**{field: 0})


def _bubblewrap(limits: Limits) -> Bubblewrap:
    if why := bubblewrap.reason():
        pytest.skip(why)
    return Bubblewrap(limits)


def test_copies_made_beside_a_snippet_are_of_the_state_and_of_nothing_else(sandbox: Sandbox) -> None:
    """The next copy of a state that is asked again is made while a snippet runs, whatever that one leaves behind."""
    state = sandbox.python().run("x = [0]")[1]
    leaves = "import os\nif os.fork() == 0:\n    while True: pass\nx.append(len(x))\nprint(x)"
    for _ in range(6):
        outcome, after = state.run(leaves)
        assert (outcome.output, outcome.status) == ("[0, 1]\n", 0)
        assert after.run("x.append(2); print(x)")[0].output == "[0, 1, 2]\n"
        assert after.run("x")[0].output == "[0, 1]\n"
    assert state.run("x")[0].output == "[0]\n"


def test_a_snippet_that_hits_a_limit_spoils_no_copy_made_beside_it(hasty: Sandbox) -> None:
    state = hasty.python().run("x = 7")[1]
    for code in ("x", "while True: pass", "x", "b = bytearray(1 << 30)", "x", "print('y' * (1 << 20))", "x"):
        outcome, _ = state.run(code)
        if code == "x":
            assert (outcome.output, outcome.status) == ("7\n", 0)
        else:
            assert outcome.status != 0


TRAINER = """
import sys, threading, time
from turnwise.sandbox import leash
from turnwise.sandbox.base import Limits
from turnwise.sandbox.bubblewrap import Bubblewrap
sandbox = Bubblewrap(Limits(seconds=60))
for _ in range(3):
    threading.Thread(target=sandbox.shell, args=("sleep 60", {}), daemon=True).start()
while len(leash.held(sandbox._mark)) < 3 or not sandbox._mark:
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
        while leash.held(mark):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_sandbox_that_is_closed_leaves_no_process_and_can_be_used_again() -> None:
    sandbox = _bubblewrap(Limits())
    marks = []
    for _ in range(2):
        assert sandbox.shell("pwd", {})[0].output == "/box\n"
        sandbox.python()
        marks.append(sandbox._mark)
        assert leash.held(marks[-1])
        sandbox.close()
        assert not leash.held(marks[-1])
    assert marks[0] != marks[1]


def test_commands_leave_nothing_in_the_hosts_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not after a kill -9 either, for there never is anything."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sandbox = _bubblewrap(Limits(seconds=20))
    sandbox.shell("echo x > /tmp/x; echo y > y", {})
    assert list(tmp_path.iterdir()) == []
    sandbox.close()


def test_a_file_that_a_snippet_left_open_is_closed(sandbox: Sandbox) -> None:
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

    def watched(*rest: Any) -> Watched:
        nonlocal running
        running = True
        seen = watch(*rest)
        running = False
        return seen

    def read(*rest: Any) -> Any:
        assert not leash.held(sandbox._mark)
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
