"""What the sandbox has to stop, tried in it."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from turnwise.sandbox.bubblewrap import Bubblewrap
from turnwise.sandbox.folder_value import File, tree_of


def alive(mark: str) -> list[int]:
    """Processes of this machine whose command line holds the mark."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and mark.encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def test_the_home_folder_is_not_there(sandbox: Bubblewrap, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden")
    places = [secret, Path.home(), Path(__file__), "/etc/passwd", "/root", "/var"]
    for place in places:
        outcome, _ = sandbox.shell(f"cat {place} || ls {place}/", {})
        assert outcome.status != 0
        assert "hidden" not in outcome.output
    outcome, _ = sandbox.python().run(f"print(open({str(secret)!r}).read())")
    assert outcome.status == 1 and "hidden" not in outcome.output


def test_the_environment_of_the_host_is_not_there(sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWISE_TEST_TOKEN", "hidden")
    assert "hidden" not in sandbox.shell("env; cat /proc/*/environ 2>&1", {})[0].output
    assert "hidden" not in sandbox.python().run("import os; print(os.environ)")[0].output


def test_nothing_outside_the_work_folder_is_written(sandbox: Bubblewrap, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for place in (tmp_path / "x", "/x", "/usr/x", "/etc/x", "/bin/x", "/dev/x", "/proc/x"):
        assert sandbox.shell(f"echo out > {place}", {})[0].status != 0
        assert not Path(place).exists()
        assert sandbox.python().run(f"open({str(place)!r}, 'w').write('out')")[0].status == 1
        assert not Path(place).exists()


def test_a_link_out_of_the_folder_is_not_followed_by_the_host(sandbox: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    _, left = sandbox.shell(f"ln -s {tmp_path}/secret link; ln -s / root; mkfifo pipe", {})
    assert "pipe" not in left
    assert not any(isinstance(entry, File) for entry in left.values())
    outcome, after = sandbox.shell("cat link; echo changed > link; ls root/root root/home", left)
    assert "hidden" not in outcome.output
    assert after == left
    assert (tmp_path / "secret").read_text() == "hidden"


def test_the_network_is_out_of_reach(sandbox: Bubblewrap) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome, _ = sandbox.shell(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached", {})
        assert outcome.status != 0 and "reached" not in outcome.output
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1); print('reached')"
        assert sandbox.python().run(code)[0].status == 1
    for target in ("('8.8.8.8', 53)", "('example.org', 80)"):
        code = f"import socket; socket.create_connection({target}, 1)"
        assert sandbox.python().run(code)[0].status in (1, None)
    vsock = sandbox.python().run("import socket; socket.socket(40, socket.SOCK_STREAM)")[0]
    assert vsock.status == 1


def test_a_fork_bomb_stays_inside(hasty: Bubblewrap) -> None:
    started = time.monotonic()
    outcome, _ = hasty.shell("f() { f | f & }; f; sleep 60 # mark-of-the-bomb", {})
    assert outcome.status != 0 or "fork" in outcome.output
    assert time.monotonic() - started < 10
    assert not alive("mark-of-the-bomb")
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    state = hasty.python()
    for _ in range(3):
        assert state.run(bomb)[0].stopped in ("processes", "time", "memory")
        after = state.run("1 + 1")[0]
        assert after.output == "2\n", after


@pytest.mark.parametrize("command", ["head -c {} /dev/zero | tail", "python3 -c 'x = bytearray({})'"])
def test_a_memory_bomb_fails(sandbox: Bubblewrap, command: str) -> None:
    small, _ = sandbox.shell(command.format(1 << 10), {})
    assert small.status == 0, small  # it is there and works, so that what follows is the memory's doing
    outcome, _ = sandbox.shell(command.format(3 << 30), {})
    assert outcome.status != 0


def test_many_processes_share_one_memory_limit(sandbox: Bubblewrap) -> None:
    one = "python3 -c 'x = bytearray(60 << 20); import time; time.sleep(6)' &\n"
    outcome, _ = sandbox.shell(one * 8 + "wait", {})
    assert outcome.stopped == "memory" or "Killed" in outcome.output  # together, or one by one


def test_a_memory_bomb_in_a_snippet_fails(sandbox: Bubblewrap) -> None:
    state = sandbox.python()
    outcome, after = state.run("x = bytearray(3 << 30)")
    assert not outcome.ok
    assert after.run("1 + 1")[0].output == "2\n"


@pytest.mark.parametrize(
    "call", ["os.memfd_create('x')", "ctypes.CDLL(None, use_errno=True).shmget(0, 1 << 30, 0o1600) < 0 and 1/0"]
)
def test_memory_that_belongs_to_no_process_is_refused(sandbox: Bubblewrap, call: str) -> None:
    assert sandbox.python().run(f"import os, ctypes\n{call}")[0].status == 1


def test_a_disk_is_not_filled(sandbox: Bubblewrap) -> None:
    outcome, left = sandbox.shell("head -c 100M /dev/zero > one", {})
    assert outcome.status != 0
    assert sum(len(entry.content) for entry in left.values() if isinstance(entry, File)) <= 4 << 20
    many = "for i in $(seq 1000); do head -c 1M /dev/zero > $i; done"
    outcome, left = sandbox.shell(many, {})
    assert "No space left on device" in outcome.output
    assert sum(len(entry.content) for entry in left.values() if isinstance(entry, File)) <= 4 << 20
    outcome, left = sandbox.shell("mkdir $(seq 2000); sleep 5", {})
    assert outcome.stopped in ("disk", "time") and len(left) <= 100
    for place in ("/tmp", "/dev/shm"):
        outcome, _ = sandbox.shell(
            f"cd {place} && for i in $(seq 40); do head -c 2M /dev/zero > $i || exit 9; done", {}
        )
        assert outcome.status != 0


def test_endless_output_is_cut(sandbox: Bubblewrap) -> None:
    outcome, _ = sandbox.shell("yes", {})
    assert outcome.stopped == "output" and len(outcome.output) == 16 << 10
    outcome, after = sandbox.python().run("while True: print('y')")
    assert outcome.stopped == "output" and len(outcome.output) == 16 << 10
    assert after.run("1")[0].ok


def test_an_endless_loop_is_stopped(hasty: Bubblewrap) -> None:
    for command in ("while :; do :; done", "sleep 60", "trap '' TERM INT HUP; sleep 60 & wait; sleep 60"):
        started = time.monotonic()
        assert hasty.shell(command, {})[0].stopped == "time"
        assert time.monotonic() - started < 6
    state = hasty.python().run("x = 1")[1]
    outcome, after = state.run("x = 2\nwhile True: pass")
    assert outcome.stopped == "time"
    assert after.run("x")[0].output == "1\n"


def test_background_processes_do_not_outlive_the_call(sandbox: Bubblewrap) -> None:
    mark = f"outliving{os.getpid()}"
    command = (
        f"setsid bash -c 'trap \"\" HUP TERM; while :; do sleep 0.05; done # {mark}' > /dev/null 2>&1 & disown; echo ok"
    )
    outcome, _ = sandbox.shell(command, {})
    assert outcome.output == "ok\n"
    assert not alive(mark)
    code = f"import subprocess; subprocess.Popen(['bash', '-c', 'sleep 30; # {mark}'], start_new_session=True); 7"
    outcome, after = sandbox.python().run(code)
    assert outcome.output == "7\n"
    assert not alive(mark)
    assert after.run("1")[0].ok


def test_a_thread_of_a_snippet_stands_still_between_snippets(sandbox: Bubblewrap) -> None:
    loop = "def count():\n    global n\n    while True:\n        n += 1\n        time.sleep(0.001)\n"
    state = sandbox.python().run(
        f"import threading, time\nn = 0\n{loop}threading.Thread(target=count, daemon=True).start()"
    )[1]
    first = int(state.run("n")[0].output)
    time.sleep(0.3)
    assert int(state.run("n")[0].output) - first < 50


def test_the_parent_cannot_be_killed(sandbox: Bubblewrap) -> None:
    outcome, _ = sandbox.shell(f"kill -9 -1; kill -9 $PPID; kill -9 1; kill -9 {os.getpid()}; echo still here", {})
    assert (outcome.stopped == "" and "still here" in outcome.output) or outcome.status != 0
    state = sandbox.python().run("x = 5")[1]
    for victim in ("-1", "1", "os.getppid()", "0", str(os.getpid())):
        sandbox.python().run(f"import os\nos.kill({victim}, 9)")
    assert state.run("x")[0].output == "5\n"


def test_one_state_cannot_reach_into_another(sandbox: Bubblewrap) -> None:
    state = sandbox.python().run("word = 'hid' + 'den'")[1]
    code = (
        "import os\nfor name in os.listdir('/proc'):\n"
        "    if name.isdigit() and int(name) != os.getpid():\n"
        "        for part in ('mem', 'environ', 'maps', 'fd'):\n"
        "            try:\n"
        "                os.listdir(f'/proc/{name}/fd') if part == 'fd' else open(f'/proc/{name}/{part}', 'r+b')\n"
        "                print('reached', name, part)\n"
        "            except OSError:\n"
        "                pass\n"
    )
    outcome, _ = sandbox.python().run(code)
    assert outcome.status == 1 and "reached" not in outcome.output
    assert state.run("word")[0].output == "'hidden'\n"


def test_a_snippet_that_lies_to_the_server_harms_only_itself(hasty: Bubblewrap) -> None:
    state = hasty.python().run("x = 5")[1]
    lie = "import os\nfor d in range(3, 64):\n    try:\n        os.write(d, b'\\0' * 4)\n    except OSError:\n        pass\n"
    state.run(lie + "while True: pass")
    assert state.run("x")[0].output == "5\n"


def test_callers_do_not_wait_for_each_other_for_ever(sandbox: Bubblewrap) -> None:
    outcomes: list[str] = []
    threads = [
        threading.Thread(
            target=lambda i=i: outcomes.append(sandbox.shell(f"cat a; echo {i}", tree_of({"a": "x"}))[0].output)
        )
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(outcomes) == [f"x{i}\n" for i in range(4)]
