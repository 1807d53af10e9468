"""Implements the sandbox with bubblewrap. Each command runs in its own sandbox. All Python interpreters share one."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from turnwise.sandbox import cleanup
from turnwise.sandbox.bwrap_arguments import DISKS, command_walls, interpreter, server_walls, shown
from turnwise.sandbox.folder_value import Tree, acting_as, opened, read_tree, write_tree
from turnwise.sandbox.python_server import PythonServer, PythonState
from turnwise.sandbox.sandbox import CallResult, Limits, SandboxFault, Stop
from turnwise.sandbox.seccomp import broker, confined, connected
from turnwise.sandbox.socket_forward import Door, Passage
from turnwise.sandbox.watch_command import Running, readable, refused, watch

NOBODY = 65534
INSTALL = "apt-get install bubblewrap"
REMEDY = (
    f"install bubblewrap with '{INSTALL}' (Debian, Ubuntu) or 'dnf install bubblewrap' (Fedora); a container must "
    "also allow user namespaces"
)
_START = 30.0  # time limit in seconds for bwrap to start its command


class Bubblewrap:
    """Runs model-written code in bubblewrap sandboxes with limits. Several threads may call its methods at once.

    A command maps a tree (the files of a work folder) to a new tree. A snippet maps a :class:`PythonState` to a new
    state. The old tree or state stays unchanged, so several rollouts can start from it.

    A sandbox contains the host's /usr (read-only), the folders ``reads`` (read-only), and a work folder in memory. It
    has no capabilities and no network, and it sees only its own processes. A seccomp filter refuses system calls. Only
    a command with a :class:`Door` can open sockets. If root started the run, the sandbox runs as ``nobody``, because
    the kernel does not limit the number of root's processes. The host accesses the work folder only before the command
    begins and after all of its processes have ended.

    Args:
        limits: the limits of each call; None: the defaults.
        python: the Python interpreter for snippets. Its folder is also first on the PATH of commands. None: the
            interpreter of this process if the sandbox may read its files, otherwise /usr/bin/python3.
        reads: additional folders of the host that code in the sandbox may read.

    Raises:
        InputError: there is no seccomp filter for this machine's architecture, or a folder of ``reads`` is missing.
    """

    name = "bubblewrap"

    def __init__(self, limits: Limits | None = None, python: str | None = None, reads: Sequence[str] = ()) -> None:
        self.limits = limits or Limits()
        self.owner = NOBODY if os.getuid() == 0 else None
        self.python_path, folders = interpreter(python, self.owner is not None)
        self._folders = [*folders, *(folder for folder in map(shown, reads) if folder not in folders)]
        self._filter, self._server_filter = confined(), broker()
        self._server: PythonServer | None = None
        self._mark = ""  # a unique word on the command line of every bwrap process that this object starts
        self._cleanup: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def shell(self, command: str, tree: Tree, door: Door | None = None) -> tuple[CallResult, Tree]:
        """Runs a bash command in a fresh folder that contains the files of ``tree``, until all of its processes have
        ended.

        Returns the result and the folder's content after the command. With a ``door``, the command can connect to one
        server of the host, on the door's port of 127.0.0.1 (see ``socket_forward.py``).

        Raises:
            SandboxFault: the sandbox did not start, or it failed.
        """
        if no := refused(command):
            return no, tree
        with ExitStack() as stack:
            passage = Passage(door, stack, self.python_path) if door else None
            try:
                process, reports = self._start(command, stack, passage)
                disks = _enter(process, reports, stack)
                with acting_as(self.owner):
                    write_tree(tree, disks[0])
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    return CallResult("", None, "disk"), tree
                raise SandboxFault(f"the work folder cannot be prepared: {error}") from error
            assert process.stdin is not None
            process.stdin.close()  # lets the command begin
            running = Running(process)
            if passage:
                passage.open(running.kill)
            outcome = _judged(*watch(running, self.limits, disks), _drain(reports))
            try:
                with acting_as(self.owner):
                    left, whole = read_tree(disks[0], self.limits.folder_mib << 20, self.limits.files)
            except OSError as error:
                raise SandboxFault(f"the work folder cannot be read: {error}") from error
        return (outcome if whole else CallResult(outcome.output, None, "disk")), left

    def python(self) -> PythonState:
        """Returns a Python state in which no names are defined yet. The first call starts the Python server.

        Raises:
            SandboxFault: the Python server did not start.
        """
        self._marked()
        with self._lock:
            if self._server is None or self._server.fault:
                self._server = PythonServer(self._start_server, self.limits)
            return PythonState(self._server, 0)

    def close(self) -> None:
        """Ends the Python server. Each call of :meth:`shell` has already ended all processes of its command."""
        with self._lock:
            if self._cleanup is not None:
                self._cleanup.stdin.close()  # type: ignore[union-attr]
                self._cleanup.wait()
                self._cleanup = None
            if self._server is not None:
                self._server.close()
                self._server = None

    def _marked(self) -> str:
        """Starts ``cleanup.py`` at the first call. Returns the word by which ``cleanup.py`` finds bwrap processes."""
        with self._lock:
            if self._cleanup is None:
                self._mark = f"turnwise-{secrets.token_hex(8)}"
                self._cleanup = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(Path(cleanup.__file__)), self._mark],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # so that cleanup.py survives if the trainer's process group is killed
                )
            return self._mark

    def _start(self, command: str, stack: ExitStack, passage: Passage | None) -> tuple[subprocess.Popen[bytes], int]:
        """Starts a bash that runs the command once bash's input is closed. Returns bwrap and its pipe for reports."""
        limits = self.limits
        bounds: dict[str, int | str] = {
            "c": 0,
            "n": 256,
            "f": limits.file_mib * 1024,
            "v": limits.memory_mib * 1024,
            "u": limits.processes,
            "t": math.ceil(limits.seconds) + 1,
        }
        if passage:  # a command with a door may open only 64 files, but may reserve any amount of address space
            bounds |= {"n": 64, "v": "unlimited"}
        script = (
            "echo; read -r _; exec < /dev/null\n"
            + (passage.prelude if passage else "")
            + "ulimit "
            + " ".join(f"-{key} {value}" for key, value in bounds.items())
            + "\n"
            + command
        )
        walls = command_walls(self.owner, self.python_path, self._folders, limits, self._marked())
        told, tell = os.pipe()
        stack.callback(os.close, told)
        rules = _pipe_of(connected() if passage else self._filter)
        try:
            process = subprocess.Popen(
                [*walls, "--seccomp", str(rules), "--json-status-fd", str(tell), "--", "/bin/bash", "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(rules, tell, *([passage.inner] if passage else [])),
            )
        except OSError as error:
            raise SandboxFault(f"bwrap did not start: {error}") from error
        finally:
            os.close(rules)
            os.close(tell)
        stack.callback(_abandon, process)
        return process, told

    def _start_server(self, source: str, settings: str) -> subprocess.Popen[bytes]:
        walls = server_walls(self.owner, self.python_path, self._folders, self._mark)
        rules = _pipe_of(self._server_filter)
        try:
            return subprocess.Popen(
                [*walls, "--seccomp", str(rules), "--", self.python_path, "-s", "-c", source, settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(rules,),
                start_new_session=True,  # so that Ctrl-C reaches only the trainer
            )
        except OSError as error:
            raise SandboxFault(f"bwrap did not start: {error}") from error
        finally:
            os.close(rules)


def reason() -> str | None:
    """Returns the reason why bubblewrap cannot be used on this machine, or None if a test command ran."""
    if not sys.platform.startswith("linux"):
        return f"bubblewrap needs Linux, but this system is {sys.platform}"
    if shutil.which("bwrap") is None:
        return "bwrap is not installed"
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        return "root must give up its rights with setpriv, which is not installed: install util-linux, or run as another user"
    try:
        sandbox = Bubblewrap(Limits(seconds=10))
        try:
            outcome, _ = sandbox.shell("echo works", {})
        finally:
            sandbox.close()
    except (SandboxFault, ValueError, OSError) as error:
        return str(error)
    return None if outcome.output == "works\n" else f"a test command in bwrap printed {outcome.output.strip()!r}"


def _enter(process: subprocess.Popen[bytes], reports: int, stack: ExitStack) -> Sequence[int]:
    """Waits until bwrap has started. Returns descriptors of the file systems to which the command can write."""
    assert process.stdout is not None
    ready = readable(process.stdout, _START)
    if not ready or os.read(process.stdout.fileno(), 1) != b"\n":
        words = (
            process.stdout.read().decode("utf-8", "replace").strip()[-500:]
            if ready
            else f"no output within {_START:g} s"
        )
        raise SandboxFault(f"bwrap failed before the command started: {words or 'no output'}")
    inside = json.loads(os.read(reports, 4096).splitlines()[0])["child-pid"]
    return [stack.enter_context(opened(f"/proc/{inside}/root{disk}")) for disk in DISKS]


def _abandon(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        Running(process).end()
    for stream in (process.stdin, process.stdout):
        stream.close()  # type: ignore[union-attr]


def _pipe_of(data: bytes) -> int:
    read, write = os.pipe()
    os.write(write, data)  # does not block, because a few kilobytes fit into the pipe's buffer
    os.close(write)
    return read


def _drain(descriptor: int) -> str:
    """Reads a pipe until all writers have closed it. Returns the text."""
    with open(descriptor, encoding="utf-8", closefd=False) as stream:
        return stream.read()


def _judged(output: bytes, stopped: Stop, reports: str) -> CallResult:
    text = output.decode("utf-8", "replace")
    if stopped:
        return CallResult(text, None, stopped)
    status = next((json.loads(line)["exit-code"] for line in reports.splitlines() if "exit-code" in line), None)
    if status is None:
        raise SandboxFault(f"bwrap ended without reporting an exit status: {text.strip()[-500:] or 'no output'}")
    return CallResult(text, status)
