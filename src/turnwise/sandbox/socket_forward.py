"""Lets a command in a sandbox connect to one server on the host. The listening socket for this is called a *door*.

A sandbox has its own network, which consists only of 127.0.0.1. A listening socket belongs to the network in which it
was created, no matter which process holds it. So a small program in the sandbox creates the socket and passes it to the
host before the command begins. The host then accepts the command's connections on this socket.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from turnwise.sandbox.sandbox import SandboxFault
from turnwise.sandbox.watch_command import readable

HOST = "127.0.0.1"
_START = 30.0  # time limit in seconds for passing the socket out of the sandbox
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
        port: port of 127.0.0.1 in the sandbox, on which the command reaches the server.
        opened: function that takes over the listening socket and returns at once. Its second argument is a function
            that ends the command.
    """

    port: int
    opened: Callable[[socket.socket, Callable[[], None]], None]


class Passage:
    """A socket pair that passes a door (a listening socket) from the sandbox to the host.

    The sandbox inherits the descriptor ``inner``. The shell code ``prelude`` creates the door and passes it.

    Args:
        door: the settings of the door.
        stack: exit stack that closes both ends of the pair.
        python: the Python interpreter in the sandbox.
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
        """Receives the listening socket from the sandbox. Passes this socket and ``end`` to ``door.opened``.

        Raises:
            SandboxFault: the sandbox passed no socket within 30 s.
        """
        self._inner.close()
        descriptors = socket.recv_fds(self._outer, 1, 1)[1] if readable(self._outer, _START) else []
        if not descriptors:
            raise SandboxFault(f"no program in the sandbox could listen on port {self.door.port}")
        self.door.opened(socket.socket(fileno=descriptors[0]), end)
