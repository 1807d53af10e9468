"""A door into a sandbox: a socket that listens inside the sandbox and is answered by a server on the host.

The network of a sandbox has nothing in it but 127.0.0.1. A listening socket belongs to the network in which it was
created, no matter which process holds it. So a small program in the sandbox creates the socket and passes it out before
the command begins. The host then accepts the command's connections on it. There is no other way out of the sandbox.
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
_START = 30.0  # seconds within which the socket must have been passed out
_LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=64) as door:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=int(sys.argv[1])) as out:
        socket.send_fds(out, [b"d"], [door.fileno()])
"""


@dataclass(frozen=True, slots=True)
class Door:
    """The settings of a door.

    Args:
        port: the port on which the command reaches the host's server.
        opened: called with the listening socket, which it then owns, and with a function that ends the command. It must
            return at once.
    """

    port: int
    opened: Callable[[socket.socket, Callable[[], None]], None]


class Passage:
    """The pair of sockets through which a door is passed out of the sandbox. The sandbox inherits ``inner``.

    Args:
        door: the port, and the function that gets the socket.
        stack: closes the sockets at the end of the call.
        python: the interpreter in the sandbox.
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
        """Waits for the listening socket and passes it to ``door.opened``.

        Raises:
            SandboxFault: no socket was passed out.
        """
        self._inner.close()
        descriptors = socket.recv_fds(self._outer, 1, 1)[1] if readable(self._outer, _START) else []
        if not descriptors:
            raise SandboxFault(f"no socket listens in the sandbox on port {self.door.port}")
        self.door.opened(socket.socket(fileno=descriptors[0]), end)
