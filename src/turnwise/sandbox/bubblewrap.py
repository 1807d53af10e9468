"""bubblewrap: namespaces without root. Each command is a sandbox of its own, all Python states of a run share another one."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from turnwise.sandbox import leash
from turnwise.sandbox.base import BOX, Limits, Outcome, PythonState, SandboxFault
from turnwise.sandbox.folders import interpreter, refused, remove
from turnwise.sandbox.python import PythonServer
from turnwise.sandbox.seccomp import confined
from turnwise.sandbox.tree import Tree, read_tree, write_tree
from turnwise.sandbox.watch import Watched, children, descendants, watch

NOBODY = 65534
INSTALL = "install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"
_SCRATCH = 16 << 20  # bytes of /tmp and of /dev/shm inside


class Bubblewrap:
    """See :class:`turnwise.sandbox.base.Sandbox`.

    Inside: the host's /usr, read-only; a work folder; no other file of the host; a network without a way out; processes of its
    own; no capabilities; a filter of system calls. Root drops to ``nobody`` first, for the kernel counts no processes of root's.

    Args:
        limits: of each call.
        python: the interpreter of snippets, also first on the path of commands. None: this one where the sandbox may read it,
            else /usr/bin/python3.

    Raises:
        InputError: the machine is one for which there is no filter.
    """

    name = "bubblewrap"

    def __init__(self, limits: Limits | None = None, python: str | None = None) -> None:
        self.limits = limits or Limits()
        self.owner = NOBODY if os.getuid() == 0 else None
        self.python_path, self._folders = interpreter(python, self.owner is not None)
        self._filter = confined()
        self._server: PythonServer | None = None
        self._place: Path | None = None  # of the work folders
        self._leash: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def shell(self, command: str, tree: Tree) -> tuple[Outcome, Tree]:
        """A command in a fresh folder; see the protocol."""
        if no := refused(command):
            return no, tree
        try:
            folder = self._work_folder()
        except OSError as error:
            raise SandboxFault(f"no work folder: {error}") from error
        try:
            write_tree(tree, folder, self.owner)
            outcome = self._run(command, folder)
            left, whole = read_tree(folder, self.limits.folder_mib << 20, self.limits.files)
        except OSError as error:  # the host's disk is full, say
            raise SandboxFault(f"the work folder: {error}") from error
        finally:
            remove(folder)
        return (outcome if whole else Outcome(outcome.output, None, "disk")), left

    def python(self) -> PythonState:
        """A state with no names; the server starts with the first one."""
        with self._lock:
            if self._server is None or self._server.fault:
                self._server = PythonServer(self._start_server, self.limits)
            return self._server.first()

    def close(self) -> None:
        """End the Python server; commands leave nothing behind."""
        with self._lock:
            if self._leash is not None:
                self._leash.stdin.close()  # type: ignore[union-attr]
                self._leash.wait()
                self._leash = None
            if self._server is not None:
                self._server.close()
                self._server = None

    def _work_folder(self) -> Path:
        with self._lock:
            if self._leash is None or self._place is None or not self._place.exists():
                if self._leash is not None:
                    self._leash.stdin.close()  # type: ignore[union-attr]
                self._place = Path(tempfile.mkdtemp(prefix="turnwise-box-"))
                self._place.chmod(0o711)  # whoever works inside may pass, and list nothing
                self._leash = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(Path(leash.__file__)), str(self._place)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # it outlives a trainer whose whole group is killed
                )
            return Path(tempfile.mkdtemp(dir=self._place))

    def _run(self, command: str, folder: Path) -> Outcome:
        limits = self.limits
        bounds = {
            "c": 0,
            "n": 256,
            "f": limits.file_mib * 1024,
            "v": limits.memory_mib * 1024,
            "u": limits.processes,
            "t": math.ceil(limits.seconds) + 1,
        }
        script = "ulimit " + " ".join(f"-{key} {value}" for key, value in bounds.items()) + "\n" + command
        argv = [
            *self._walls(),
            *("--die-with-parent", "--size", str(_SCRATCH), "--tmpfs", "/tmp"),
            *("--bind", str(folder), BOX, "--chdir", BOX, "--remount-ro", "/"),
        ]
        told, tell = os.pipe()
        rules = self._filter_pipe()
        try:
            process = subprocess.Popen(
                [*argv, "--seccomp", str(rules), "--json-status-fd", str(tell), "--", "/bin/bash", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(rules, tell),
            )
        except OSError as error:
            os.close(told)
            raise SandboxFault(f"bwrap did not start: {error}") from error
        finally:
            os.close(rules)
            os.close(tell)
        try:
            seen = watch(_Running(process), limits, folder)
            reports = _drain(told)
        finally:
            os.close(told)
        return _judged(seen, reports)

    def _start_server(self, source: str, settings: str) -> subprocess.Popen[bytes]:
        rules = self._filter_pipe()
        try:
            return subprocess.Popen(
                [
                    *(*self._walls(), "--remount-ro", "/", "--seccomp", str(rules), "--"),
                    *(self.python_path, "-I", "-c", source, settings),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(rules,),
                start_new_session=True,  # Ctrl-C is for the trainer
            )
        except OSError as error:
            raise SandboxFault(f"bwrap did not start: {error}") from error
        finally:
            os.close(rules)

    def _walls(self) -> list[str]:
        drop = ["setpriv", f"--reuid={self.owner}", f"--regid={self.owner}", "--clear-groups"] if self.owner else []
        system: list[str] = []
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            path = Path("/", name)
            if path.is_symlink():
                system += ["--symlink", str(path.readlink()), str(path)]
            elif path.exists():
                system += ["--ro-bind", str(path), str(path)]
        for place in ("/etc/alternatives", "/etc/ld.so.cache"):
            system += ["--ro-bind-try", place, place]
        for place in self._folders:
            system += ["--ro-bind", place, place]
        variables = {
            "PATH": f"{Path(self.python_path).parent}:/usr/bin:/bin",
            "HOME": BOX,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
        }
        return [
            *drop,
            *("bwrap", "--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL"),
            *("--uid", "1000", "--gid", "1000", "--hostname", "box", "--clearenv"),
            *[part for name, value in variables.items() for part in ("--setenv", name, value)],
            *("--ro-bind", "/usr", "/usr", *system),
            *(
                "--proc",
                "/proc",
                "--dev",
                "/dev",
                "--size",
                str(_SCRATCH),
                "--tmpfs",
                "/dev/shm",
                "--remount-ro",
                "/dev",
            ),
        ]

    def _filter_pipe(self) -> int:
        read, write = os.pipe()
        os.write(write, self._filter)  # a kilobyte: a pipe holds it
        os.close(write)
        return read


class _Running:
    """A command in bwrap. The outer process has one child, process 1 of the sandbox, which takes all others with it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process, self.pid, self.stdout = process, process.pid, process.stdout

    def members(self) -> list[int]:
        return list(descendants(self.pid))

    def end(self) -> None:
        """Kill process 1; the outer process ends by itself when nothing is left inside."""
        if self.process.poll() is None:
            for child in children(self.pid) or [self.pid]:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise SandboxFault("a command that was killed did not end within 10 s") from None


def reason() -> str | None:
    """Why bubblewrap cannot work here, with the remedy; None where a command runs."""
    if not sys.platform.startswith("linux"):
        return f"bubblewrap needs Linux, this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return f"bwrap is not installed: {INSTALL}"
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        return "root has to drop its rights and setpriv is not installed: install util-linux, or run as another user"
    try:
        sandbox = Bubblewrap(Limits(seconds=10))
        try:
            outcome, _ = sandbox.shell("echo works", {})
        finally:
            sandbox.close()
    except (SandboxFault, ValueError, OSError) as error:
        return str(error)
    return None if outcome.output == "works\n" else f"a command in bwrap answered {outcome.output.strip()!r}"


def _drain(descriptor: int) -> str:
    """What is in a pipe whose writers are gone."""
    parts = []
    while chunk := os.read(descriptor, 4096):
        parts.append(chunk)
    return b"".join(parts).decode()


def _judged(seen: Watched, reports: str) -> Outcome:
    text = seen.output.decode("utf-8", "replace")
    if seen.stopped and "child-pid" in reports:
        return Outcome(text, None, seen.stopped)
    status = next((json.loads(line)["exit-code"] for line in reports.splitlines() if "exit-code" in line), None)
    if status is None:  # bwrap never came to run the command
        why = text.strip()[-500:] or seen.stopped or "it said nothing"
        raise SandboxFault(f"bwrap failed before the command: {why}")
    return Outcome(text, status)
