"""Runs model-written code in bubblewrap: shell commands in folders, and Python snippets. Never runs it on the host.

Each command and each snippet has a sandbox of its own. A command maps a tree (the content of a work folder) to a new
tree; a snippet repeats the earlier ones of its episode. Both change nothing outside, so several rollouts can start from
one tree or from the same snippets.

The kernel limits each process (``ulimit``). It does not limit the total memory of several processes or the number of
files in a file system, so the host compares these with the limits about forty times per second, from outside.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, get_args

from annotated_types import Ge
from pydantic import PositiveFloat, PositiveInt

from turnwise.errors import InputError
from turnwise_worlds.sandbox import processes
from turnwise_worlds.sandbox.folder_value import File, Tree, folder_access_as, open_folder, read_tree, write_tree
from turnwise_worlds.sandbox.processes import children, descendants, readable, resident, send_signal
from turnwise_worlds.sandbox.seccomp import filter_of

Stop = Literal["", "time", "memory", "processes", "output", "disk"]
"""The name of the limit that ended a command or snippet; empty if it ended by itself."""
Kind = Literal["command", "snippet", "connected"]

BOX = "/box"  # a command's work folder and home folder in the sandbox
HOST = "127.0.0.1"  # the only address in a sandbox's own network
NOBODY = 65534
INSTALL = "apt-get install bubblewrap"

_START = 30.0  # time limit in seconds for a sandbox to start
_TICK = 0.025  # seconds between two checks of the limits
_LONGEST = 100_000  # maximum length of a command in bytes; the kernel refuses arguments of more than 128 KiB
_PAGE = 4096  # size in bytes that the smallest file takes in memory
_SCRATCH = 16 << 20  # maximum size in bytes of a command's /tmp, and also of its /dev/shm
_DISKS = (BOX, "/tmp", "/dev/shm")  # the file systems to which a command can write, all in memory, of limited size
_PROGRAM = Path(__file__).with_name("interpreter.py").read_text(encoding="utf-8")
_LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=64) as server_port:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=int(sys.argv[1])) as out:
        socket.send_fds(out, [b"d"], [server_port.fileno()])
"""


class NoSandboxError(InputError):
    """Raised if no sandbox works on this machine. The message says why, and what to install."""


class SandboxFault(RuntimeError):
    """Raised if the sandbox itself failed: it could not start, or it ended without a result."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one call of a sandbox (a command or a snippet), for all processes of the call together."""

    seconds: PositiveFloat = 5.0  # wall-clock time in seconds
    memory_mib: Annotated[int, Ge(16)] = 512  # memory in MiB; no Python interpreter starts with less
    processes: PositiveInt = 32  # number of processes
    file_mib: PositiveInt = 16  # size of a single file in MiB
    folder_mib: PositiveInt = 32  # size of the work folder after the call in MiB
    files: PositiveInt = 2000  # number of files, links and folders in the work folder
    output_kib: PositiveInt = 64  # size of standard output and standard error together in KiB


@dataclass(frozen=True, slots=True)
class CallResult:
    output: str  # standard output and standard error in the order in which they were written
    status: int | None  # exit status; None if a limit ended the call, or a snippet its interpreter
    stopped: Stop = ""

    @property
    def ok(self) -> bool:
        return self.status == 0


@dataclass(frozen=True, slots=True)
class ServerPort:
    """Lets a command connect to one server on the host. A listening socket belongs to the network in which it was
    created, so a small program in the sandbox creates it, on ``port`` of 127.0.0.1, and passes it to the host before
    the command begins. ``opened`` takes it over and returns at once; its second argument ends the command.
    """

    port: int
    opened: Callable[[socket.socket, Callable[[], None]], None]


class Bubblewrap:
    """Runs model-written code in sandboxes with limits. Several threads may call its methods at once. A sandbox
    contains the host's /usr and the folders ``reads`` (read-only), and for a command a work folder in memory. It has no
    capabilities and no network, sees only its own processes, and a seccomp filter refuses system calls. If root started
    the run, it runs as ``nobody``, because the kernel does not limit root's processes. ``python`` runs snippets and is
    first on the PATH of commands; None: this process's interpreter if the sandbox may read it, else /usr/bin/python3.
    """

    name = "bubblewrap"

    def __init__(self, limits: Limits | None = None, python: str | None = None, reads: Sequence[str] = ()) -> None:
        self.limits = limits or Limits()
        self.owner = NOBODY if os.getuid() == 0 else None
        self.python_path, folders = _interpreter(python, self.owner is not None)
        self._folders = [*folders, *(folder for folder in map(_shown, reads) if folder not in folders)]
        self._filters = {kind: filter_of(kind) for kind in get_args(Kind)}
        self._mark = ""  # a unique word on the command line of every bwrap process that this object starts
        self._cleaner: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def shell(self, command: str, tree: Tree, server_port: ServerPort | None = None) -> tuple[CallResult, Tree]:
        """Runs a bash command in a fresh folder with the files of ``tree`` until all of its processes have ended.
        Returns the result and the folder's content. Raises ``SandboxFault`` if the sandbox failed.
        """
        if mistake := _mistake(command):
            return CallResult(f"bash: {mistake}\n", 2), tree
        return self._run(command, tree, self.limits, "connected" if server_port else "command", server_port)

    def _run(
        self, command: str, tree: Tree, limits: Limits, kind: Kind, server_port: ServerPort | None = None
    ) -> tuple[CallResult, Tree]:
        with ExitStack() as stack:
            ours = theirs = None
            if server_port:
                ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            reports, process = self._start(command, limits, kind, server_port, theirs, stack)
            assert process.stdin is not None and process.stdout is not None
            if not readable(process.stdout, _START) or os.read(process.stdout.fileno(), 1) != b"\n":
                raise SandboxFault(f"bwrap failed before the command started: {_last_words(process)}")
            inside = json.loads(os.read(reports, 4096).splitlines()[0])["child-pid"]
            disks = [stack.enter_context(open_folder(f"/proc/{inside}/root{disk}")) for disk in _DISKS]
            try:
                with folder_access_as(self.owner):
                    write_tree(tree, disks[0])
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    return CallResult("", None, "disk"), tree
                raise SandboxFault(f"the work folder cannot be prepared: {error}") from error
            process.stdin.close()  # lets the command begin
            if server_port and ours and theirs:
                theirs.close()
                descriptors = socket.recv_fds(ours, 1, 1)[1] if readable(ours, _START) else []
                if not descriptors:
                    raise SandboxFault(f"no program in the sandbox could listen on port {server_port.port}")
                server_port.opened(socket.socket(fileno=descriptors[0]), lambda: _kill(process))
            gone = os.pidfd_open(process.pid)
            stack.callback(os.close, gone)
            output, stopped = _watch_sandbox(process, gone, limits, disks)
            _end_sandbox(process)
            with open(reports, encoding="utf-8", closefd=False) as stream:
                status = [json.loads(line)["exit-code"] for line in stream if "exit-code" in line]
            if not stopped and not status:
                raise SandboxFault(f"bwrap ended without reporting an exit status: {output.strip()[-500:]}")
            try:
                with folder_access_as(self.owner):
                    left, whole = read_tree(disks[0], limits.folder_mib << 20, limits.files)
            except OSError as error:
                raise SandboxFault(f"the work folder cannot be read: {error}") from error
        if not whole:
            return CallResult(output, None, "disk"), left
        return CallResult(output, None if stopped else status[0], stopped), left

    def python(self, before: Sequence[str], code: str) -> CallResult:
        """Runs a snippet of Python code with the names that the snippets in ``before`` define, which are repeated first.
        ``random`` starts from one seed; what depends on the time may differ when it is repeated. The output is what the
        snippet printed, then the ``repr`` of its last expression or a traceback (status 1).
        """
        snippets = [*before, code]
        words = shlex.join([self.python_path, "-s", "-c", _PROGRAM, str(self.limits.seconds)])
        # Bash stays process 1, which would ignore the signal of its own timer, and says nothing about the signal.
        command = f"exec 3>&1 2> /dev/null; {words} 2>&3 3>&-; exit $?"
        while True:
            # a timer ends each snippet; all together, with the start, have a limit in case one stops the timer
            limits = replace(self.limits, seconds=self.limits.seconds * (len(snippets) + 1))
            result, left = self._run(command, {"snippets": File(json.dumps(snippets).encode())}, limits, "snippet")
            entry = left.get("ended")
            text = entry.content if isinstance(entry, File) else b""  # a snippet may have written anything
            ended = int(text) if text.isdigit() and len(text) < 10 else len(snippets) - 1
            if ended >= len(snippets) - 1 or result.stopped == "time":
                break
            del snippets[ended]  # it ended the interpreter, as at first, so it has changed nothing
        if result.status == 128 + signal.SIGALRM:
            return replace(result, status=None, stopped="time")
        return result if ended >= len(snippets) else replace(result, status=None)

    def close(self) -> None:
        """Ends the small program of :meth:`_guard`. Calls have ended their processes."""
        with self._lock:
            if self._cleaner is not None:
                self._cleaner.stdin.close()  # type: ignore[union-attr]
                self._cleaner.wait()
                self._cleaner = None

    def _start(
        self,
        command: str,
        limits: Limits,
        kind: Kind,
        server_port: ServerPort | None,
        inner: socket.socket | None,
        stack: ExitStack,
    ) -> tuple[int, subprocess.Popen[bytes]]:
        """Starts bwrap, whose command waits for the end of its standard input. Returns the descriptor of its reports too."""
        self._guard()
        lines = ["echo; read -r _; exec < /dev/null"]
        if server_port and inner:
            words = [self.python_path, "-I", "-S", "-c", _LISTEN, str(inner.fileno()), str(server_port.port)]
            lines += [f"{shlex.join(words)} || exit 97", f"exec {inner.fileno()}>&-"]
        # an agent (with a server_port) may reserve any amount of address space
        space, descriptors = ("unlimited", 64) if server_port else (limits.memory_mib * 1024, 256)
        bounds = f"-c 0 -n {descriptors} -f {limits.file_mib * 1024} -v {space} -u {limits.processes}"
        lines += [f"ulimit {bounds} -t {math.ceil(limits.seconds) + 1}", command]
        size = (limits.folder_mib << 20) + limits.files * _PAGE
        drop = ["setpriv", f"--reuid={self.owner}", f"--regid={self.owner}", "--clear-groups"] if self.owner else []
        variables = {
            "PATH": f"{Path(self.python_path).parent}:/usr/bin:/bin", "HOME": BOX, "LANG": "C.UTF-8", "TZ": "UTC",
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "TURNWISE_MARK": self._mark,
        }  # fmt: skip
        folders = [("--ro-bind-try", "/etc/alternatives"), ("--ro-bind-try", "/etc/ld.so.cache")]
        folders += [("--ro-bind", place) for place in ("/usr", *self._folders)]
        rules, write = os.pipe()
        os.write(write, self._filters[kind])  # does not block, because a few kilobytes fit into the pipe's buffer
        os.close(write)
        reports, tell = os.pipe()
        stack.callback(os.close, reports)
        alone = "--unshare-all --as-pid-1 --new-session --cap-drop ALL --uid 1000 --gid 1000 --hostname box --clearenv"
        arguments = [
            *(*drop, "bwrap", *f"{alone} --die-with-parent --seccomp {rules} --json-status-fd {tell}".split()),
            *(part for name, value in variables.items() for part in ("--setenv", name, value)),
            *("--unsetenv", "TURNWISE_MARK"),  # so the mark is on bwrap's command line but not in the sandbox
            *_system(),
            *(part for how, place in folders for part in (how, place, place)),
            *([] if kind == "snippet" else ["--proc", "/proc"]),
            *f"--dev /dev --size {_SCRATCH} --tmpfs /dev/shm --remount-ro /dev/pts --remount-ro /dev".split(),
            *f"--size {_SCRATCH} --tmpfs /tmp --perms 0700 --size {size} --tmpfs {BOX} --chdir {BOX} --remount-ro /".split(),
            *("--", "/bin/bash", "-c", "\n".join(lines)),
        ]
        passed = (rules, tell, inner.fileno()) if inner else (rules, tell)
        try:
            process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=passed
            )
        except OSError as error:
            raise SandboxFault(f"bwrap did not start: {error}") from error
        finally:
            os.close(rules)
            os.close(tell)
        stack.callback(_abandon, process)
        return reports, process

    def _guard(self) -> None:
        """Starts the small program that ends the sandboxes of a killed trainer, unless it runs."""
        with self._lock:
            if self._cleaner is None:
                self._mark, nowhere = f"turnwise-{secrets.token_hex(8)}", subprocess.DEVNULL
                cleaner = [sys.executable, "-I", "-S", processes.__file__, self._mark]
                # a session of its own, so that it survives if the trainer's process group is killed
                self._cleaner = subprocess.Popen(
                    cleaner, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
                )


def open_sandbox(limits: Limits | None = None, python: str | None = None, reads: Sequence[str] = ()) -> Bubblewrap:
    """Returns a sandbox. Raises ``NoSandboxError`` if none works here; model-written code is then not run at all."""
    for _ in range(3):  # a single test command may fail because its process was killed or because the machine is busy
        why = why_no_sandbox()
        if why is None:
            return Bubblewrap(limits, python, reads)
    raise NoSandboxError(
        f"sandbox: commands and code of a model cannot be run safely here ({why}); install bubblewrap with '{INSTALL}' "
        "(Debian, Ubuntu) or 'dnf install bubblewrap' (Fedora); a container must also allow user namespaces"
    )


def why_no_sandbox() -> str | None:
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
            result, _ = sandbox.shell("echo works", {})
        finally:
            sandbox.close()
    except (SandboxFault, ValueError, OSError) as error:
        return str(error)
    return None if result.output == "works\n" else f"a test command in bwrap printed {result.output.strip()!r}"


@cache
def _system() -> tuple[str, ...]:
    arguments: list[str] = []
    for path in (Path("/", name) for name in ("bin", "sbin", "lib", "lib32", "lib64")):
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            arguments += ["--ro-bind", str(path), str(path)]
    return tuple(arguments)


def _interpreter(python: str | None, by_nobody: bool) -> tuple[str, list[str]]:
    own = [Path(place).resolve() for place in (sys.prefix, sys.base_prefix)]
    if python is not None and Path(python).resolve() != Path(sys.executable).resolve():
        return python, [] if python.startswith("/usr/") else [str(Path(python).resolve().parents[1])]
    if by_nobody and not all(folder.stat().st_mode & 5 == 5 for place in own for folder in (place, *place.parents)):
        return "/usr/bin/python3", []
    return sys.executable, sorted({str(place) for place in own if not place.is_relative_to("/usr")})


def _shown(folder: str) -> str:
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise InputError(f"sandbox: {folder!r} is not a folder; name a folder that commands may read")
    return str(path)


def _mistake(command: str) -> str:
    try:
        data = command.encode()
    except UnicodeEncodeError:
        return "the command is no UTF-8 text"
    if b"\0" in data:
        return "the command holds a zero byte"
    return "the command is too long" if len(data) > _LONGEST else ""


def _watch_sandbox(
    process: subprocess.Popen[bytes], done: int, limits: Limits, disks: Sequence[int] = ()
) -> tuple[str, Stop]:
    """Reads output until the descriptor ``done`` can be read, or the processes exceed a limit, whose name is returned
    too. ``disks`` are descriptors of the file systems to which the code can write.
    """
    assert process.stdout is not None
    stream, most = process.stdout.fileno(), limits.output_kib << 10
    os.set_blocking(stream, False)
    output, stopped = bytearray(), ""
    checked = time.monotonic()
    deadline = checked + limits.seconds
    waiting = select.poll()
    waiting.register(stream, select.POLLIN)
    waiting.register(done, select.POLLIN)
    while not stopped:
        ready = {descriptor for descriptor, _ in waiting.poll(_TICK * 1000)}
        if not _take(stream, output, most) and stream in ready:
            waiting.unregister(stream)
        if len(output) > most:
            stopped = "output"
        elif done in ready:
            break
        elif (now := time.monotonic()) > deadline:
            stopped = "time"
        elif now - checked > _TICK:
            checked = now
            stopped = _excess(list(descendants(process.pid)), limits, disks)
    if stopped:
        _end_sandbox(process)
    return output[:most].decode("utf-8", "replace"), stopped  # type: ignore[return-value]


def _excess(members: Sequence[int], limits: Limits, disks: Sequence[int]) -> Stop:
    if len(members) > limits.processes + 2:
        return "processes"
    if sum(map(resident, members)) > limits.memory_mib << 20:
        return "memory"
    systems = map(os.fstatvfs, disks)  # deleted files count while they are open; the root folder does not count
    return "disk" if any(system.f_files - system.f_ffree - 1 > limits.files for system in systems) else ""


def _take(stream: int, output: bytearray, most: int) -> bool:
    """Appends what a pipe holds now to ``output``, up to more than ``most`` bytes. Returns False if the pipe has ended."""
    with suppress(BlockingIOError):
        while len(output) <= most:
            if not (chunk := os.read(stream, 1 << 16)):
                return False
            output += chunk
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # otherwise bwrap has ended, and its process id may belong to another process
        send_signal(children(process.pid) or [process.pid], signal.SIGKILL)


def _end_sandbox(process: subprocess.Popen[bytes]) -> None:
    """Kills a sandbox, and returns when all of its processes have ended. Raises SandboxFault if they do not."""
    _kill(process)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise SandboxFault("a sandbox that was killed did not end within 10 s") from None


def _abandon(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        _end_sandbox(process)
    for stream in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            stream.close()  # type: ignore[union-attr]


def _last_words(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    if not readable(process.stdout, 0):
        return f"no output within {_START:g} s"
    return process.stdout.read().decode("utf-8", "replace").strip()[-500:] or "no output"


if __name__ == "__main__":
    try:
        open_sandbox().close()
    except NoSandboxError as error:
        sys.exit(str(error))
    print("sandbox: bubblewrap works here")
