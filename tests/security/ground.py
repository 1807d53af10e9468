"""What the escapes are aimed at: files, servers and a process outside of the sandbox, and how a probe is run inside."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from turnwise_worlds.sandbox.folder_value import Tree, folder_tree
from turnwise_worlds.sandbox.sandbox import NOBODY, Bubblewrap, CallResult, Limits
from turnwise_worlds.sandbox.seccomp import NUMBERS

LIMITS = Limits(seconds=15, memory_mib=160, processes=16, file_mib=2, folder_mib=4, files=200, output_kib=16)
KIT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {numbers}
def call(name, *rest):
    rest = [ctypes.c_long(value) if isinstance(value, int) else value for value in rest]
    return libc.syscall(ctypes.c_long(NUMBERS[name]), *rest)
def works(name, *rest):
    if call(name, *rest) >= 0:
        print("reached", name)
def quietly(act, *rest):
    try:
        return act(*rest)
    except (OSError, ValueError, AttributeError):
        return None
"""
"""What every program of a probe begins with."""


@dataclass
class Ground:
    """Outside of the sandbox.

    ``outside`` is a folder that everybody may write to, ``victim`` a process of the user that the sandbox has. A server that
    was reached has a connection or a message waiting.
    """

    sandbox: Bubblewrap
    outside: Path
    secret: str
    victim: subprocess.Popen[bytes]
    streams: Mapping[str, socket.socket]
    datagrams: socket.socket

    def shell(self, command: str, tree: Tree | None = None) -> CallResult:
        return self.sandbox.shell(command, tree or {})[0]

    def program(self, code: str, before: str = "") -> CallResult:
        """Run a Python program as a command, after another command."""
        return self.shell(f"{before}\npython3 probe.py", folder_tree({"probe.py": kit() + code}))

    def snippet(self, code: str, before: str = "") -> CallResult:
        """Run a snippet after another one, which begins as every program does."""
        return self.sandbox.python((kit() + before,), code)

    def answers(self) -> bool:
        """Whether a server was reached; what was waiting is gone then."""
        reached = False
        for server in self.streams.values():
            try:
                server.accept()[0].close()
                reached = True
            except BlockingIOError:
                pass
        try:
            self.datagrams.recv(100)
            return True
        except BlockingIOError:
            return reached

    def port(self, name: str) -> int:
        return int(self.streams[name].getsockname()[1])


def kit() -> str:
    more = {"ioprio_set": 251, "pidfd_open": 434}  # harmless, so no filter names them
    return KIT.replace("{numbers}", repr(NUMBERS | more))


Probes = Iterator[tuple[str, bool]]
"""Each probe's name, and whether it got out."""
Family = Callable[[Ground], Probes]


def prepared(sandbox: Bubblewrap, stack: ExitStack) -> Ground:
    """The ground of one run; what it made ends with the stack."""
    outside = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnwise-escape-")))
    outside.chmod(0o777)
    secret = f"hidden{os.getpid()}"
    (outside / "secret").write_text(secret)
    (outside / "open").write_text("open\n")
    (outside / "folder").mkdir()
    for name, mode in {"secret": 0o666, "open": 0o666, "folder": 0o777}.items():
        (outside / name).chmod(mode)
        if os.getuid() == 0:
            os.chown(outside / name, NOBODY, NOBODY)
    streams = {
        "4": socket.create_server(("127.0.0.1", 0)),
        "path": _unix(str(outside / "socket")),
        "abstract": _unix(f"\0{secret}"),
    }
    (outside / "socket").chmod(0o777)
    if socket.has_dualstack_ipv6():
        streams["6"] = socket.create_server(("::1", 0), family=socket.AF_INET6)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    for server in (*streams.values(), datagrams):
        server.setblocking(False)
        stack.callback(server.close)
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []
    victim = subprocess.Popen([*drop, "sleep", "600"])
    stack.callback(victim.wait)
    stack.callback(victim.kill)
    return Ground(sandbox, outside, secret, victim, streams, datagrams)


def _unix(name: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(name)
    server.listen()
    return server


def alive(mark: str) -> bool:
    """Whether a process of this machine has the mark on its command line."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in place.read_bytes():
                return True
        except OSError:
            continue
    return False
