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

import pytest

from turnwise.errors import InputError
from turnwise.sandbox import bubblewrap, python_server
from turnwise.sandbox.bubblewrap import Bubblewrap
from turnwise.sandbox.detect import open_sandbox
from turnwise.sandbox.folder_value import File, tree_of
from turnwise.sandbox.sandbox import Limits, NoSandboxError, SandboxFault
from turnwise.sandbox.watch_command import children, descendants


def test_a_command_maps_a_folder_to_a_folder(sandbox: Bubblewrap) -> None:
    before = tree_of({"a/x.txt": "one\n", "y.sh": "echo ran\n"})
    outcome, after = sandbox.shell("cat a/x.txt; mv a/x.txt b; chmod +x y.sh; ./y.sh; rmdir a; exit 3", before)
    assert (outcome.output, outcome.status, outcome.stopped, outcome.ok) == ("one\nran\n", 3, "", False)
    assert after == {"b": File(b"one\n"), "y.sh": File(b"echo ran\n", executable=True)}
    assert before == tree_of({"a/x.txt": "one\n", "y.sh": "echo ran\n"})


def test_both_streams_come_in_their_order(sandbox: Bubblewrap) -> None:
    assert sandbox.shell("echo 1; echo 2 >&2; echo 3", {})[0].output == "1\n2\n3\n"


@pytest.mark.parametrize(
    "command", ["echo '", "\0", "\ud800", "", "  ", "exit 300", "kill -9 $$", "\x1b[2J", "x" * 200_000]
)
def test_odd_commands_are_outcomes(sandbox: Bubblewrap, command: str) -> None:
    outcome, after = sandbox.shell(command, {})
    assert outcome.stopped == "" and after == {}


def test_standard_input_is_empty(sandbox: Bubblewrap) -> None:
    assert sandbox.shell("cat; read x || echo end", {})[0].output == "end\n"


def test_a_snippet_continues_a_state_and_shows_its_last_value(sandbox: Bubblewrap) -> None:
    outcome, state = sandbox.python().run("import math\nx = [1]\nprint('said')\nmath.floor(2.5)")
    assert (outcome.output, outcome.status) == ("said\n2\n", 0)
    assert state.run("x = x + [2]; x")[0].output == "[1, 2]\n"
    assert state.run("None")[0].output == ""


def test_branches_of_a_state_are_independent(sandbox: Bubblewrap) -> None:
    _, root = sandbox.python().run("x = [0]")
    _, left = root.run("x.append(1)")
    _, right = root.run("x.append(2); y = 5")
    _, leaf = left.run("x.append(3)")
    shown = [state.run("x")[0].output for state in (root, left, right, leaf)]
    assert shown == ["[0]\n", "[0, 1]\n", "[0, 2]\n", "[0, 1, 3]\n"]
    assert "NameError" in leaf.run("y")[0].output


def test_a_snippet_that_raises_keeps_what_came_before(sandbox: Bubblewrap) -> None:
    outcome, state = sandbox.python().run("x = 1\nraise ValueError('no')\nx = 2")
    assert outcome.status == 1
    assert outcome.output.splitlines()[-1] == "ValueError: no"
    assert "python_state.py" not in outcome.output and "<string>" not in outcome.output
    assert state.run("x")[0].output == "1\n"


@pytest.mark.parametrize(
    "code", ["def", "\0", "\ud800", "(" * 500, "import sys; sys.exit(4)", "raise KeyboardInterrupt"]
)
def test_odd_snippets_are_outcomes(sandbox: Bubblewrap, code: str) -> None:
    outcome, state = sandbox.python().run(code)
    assert outcome.status not in (0, None)
    assert state.run("1")[0].ok


def test_states_that_are_let_go_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_server, "STATES", 8)
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
    monkeypatch.setattr(python_server, "KEPT_MIB", 100)
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


def test_each_snippet_has_a_process_of_its_own() -> None:
    sandbox = _bubblewrap(Limits(seconds=20))
    _, state = sandbox.python().run("import os")
    assert len({state.run("os.getpid()")[0].output for _ in range(20)}) == 20
    sandbox.close()


def test_processes_go_with_their_states() -> None:
    sandbox = _bubblewrap(Limits(seconds=20))
    root = sandbox.python()
    states = [root.run(f"x = [{i}]")[1] for i in range(6)]
    for _ in range(2):
        states = [state.run("x.append(x[-1] + 1)")[1] for state in states]
    assert [state.run("x")[0].output for state in states] == [f"[{i}, {i + 1}, {i + 2}]\n" for i in range(6)]
    assert len(_inside(sandbox)) <= 2 + 1 + 6 + 6 + 1  # bwrap and broker, root, states, not yet let go
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


def test_an_alarm_during_a_snippet_leaves_no_reply_to_a_later_snippet() -> None:
    def ring(number: int, frame: object) -> None:
        raise InterruptedError("the alarm")

    sandbox = _bubblewrap(Limits(seconds=20))
    _, state = sandbox.python().run("x = 1")
    handler = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(InterruptedError):
            state.run("import time; time.sleep(1); print('late')")
    finally:
        signal.signal(signal.SIGALRM, handler)
    with pytest.raises(SandboxFault, match="interrupted"):
        state.run("x")
    assert sandbox.python().run("2")[0].output == "2\n"
    sandbox.close()


def test_a_failing_bwrap_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = _bubblewrap(Limits())
    monkeypatch.setattr(sandbox, "_folders", ["/no/such/folder"])
    with pytest.raises(SandboxFault, match="no/such/folder"):
        sandbox.shell("echo", {})


def test_the_server_refuses_to_run_outside_a_sandbox() -> None:
    command = [sys.executable, "-I", "-c", python_server.source(), "{}"]
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
        bubblewrap._judged(b"words", "", '{ "child-pid": 7 }\n')


def test_a_host_that_cannot_write_is_a_fault(sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*rest: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(bubblewrap, "write_tree", broken)
    with pytest.raises(SandboxFault, match="Input/output error"):
        sandbox.shell("echo", {})


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


def test_copies_are_of_the_state_and_of_nothing_else(sandbox: Bubblewrap) -> None:
    state = sandbox.python().run("x = [0]")[1]
    leaves = "import os\nif os.fork() == 0:\n    while True: pass\nx.append(len(x))\nprint(x)"
    for _ in range(6):
        outcome, after = state.run(leaves)
        assert (outcome.output, outcome.status) == ("[0, 1]\n", 0)
        assert after.run("x.append(2); print(x)")[0].output == "[0, 1, 2]\n"
        assert after.run("x")[0].output == "[0, 1]\n"
    assert state.run("x")[0].output == "[0]\n"


def test_a_snippet_that_hits_a_limit_spoils_no_later_one(hasty: Bubblewrap) -> None:
    state = hasty.python().run("x = 7")[1]
    for code in ("x", "while True: pass", "x", "b = bytearray(1 << 30)", "x", "print('y' * (1 << 20))", "x"):
        outcome, _ = state.run(code)
        if code == "x":
            assert (outcome.output, outcome.status) == ("7\n", 0)
        else:
            assert outcome.status != 0
