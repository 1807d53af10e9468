"""A door into a sandbox: a socket that listens inside, and that a server of the host answers.

A sandbox has a network of its own without anything in it but 127.0.0.1. A listening socket belongs to the network in which it was
made, whoever holds it. So a small program inside makes the socket and hands it out before the command begins; the host accepts
from it what the command connects to. Nothing else leads out.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from turnwise.sandbox.sandbox import SandboxFault
from turnwise.sandbox.watch import readable

HOST = "127.0.0.1"
_START = 30.0  # seconds within which the socket has to come out
_LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=64) as door:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=int(sys.argv[1])) as out:
        socket.send_fds(out, [b"d"], [door.fileno()])
"""


@dataclass(frozen=True, slots=True)
class Door:
    """Args:
    port: on which the command finds the server of the host.
    opened: is given the listening socket, which it then owns, and a function that ends the command. It must return at once.
    """

    port: int
    opened: Callable[[socket.socket, Callable[[], None]], None]


class Passage:
    """The pair of sockets over which the door comes out. ``inner`` is inherited by the sandbox.

    Args:
        stack: closes the sockets at the end of the call.
        python: the interpreter inside.
    """

    def __init__(self, door: Door, stack: ExitStack, python: str) -> None:
        self.door = door
        self._outer, self._inner = socket.socketpair()
        stack.callback(self._outer.close)
        stack.callback(self._inner.close)
        self.inner = self._inner.fileno()
        words = " ".join(map(shlex.quote, (python, "-I", "-S", "-c", _LISTEN, str(self.inner), str(door.port))))
        self.prelude = f"{words} || exit 97\nexec {self.inner}>&-\n"

    def open(self, end: Callable[[], None]) -> None:
        """Waits for the socket and hands it over.

        Raises:
            SandboxFault: none came out.
        """
        self._inner.close()
        descriptors = socket.recv_fds(self._outer, 1, 1)[1] if readable(self._outer, _START) else []
        if not descriptors:
            raise SandboxFault(f"no socket listens inside on port {self.door.port}")
        self.door.opened(socket.socket(fileno=descriptors[0]), end)
