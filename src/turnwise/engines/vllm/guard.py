"""Runs a server and ends it when the process that started the guard ends: ``python guard.py -- command``.

The guard (the process of this file) watches its standard input, which closes when its parent process ends. The guard
then ends the server's whole process group. The group is also ended when the server exits by itself and when the guard
is killed. The guard's exit status is that of the server, or 128 plus the number of the signal that killed the server.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

GRACE = 5.0  # seconds between asking the server to end (SIGTERM) and killing it (SIGKILL)
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main() -> None:
    """Runs the server until it ends, and makes sure that its whole process group has ended too."""
    library = ctypes.CDLL(None)
    server = subprocess.Popen(
        sys.argv[sys.argv.index("--") + 1 :],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        # The kernel kills the server if the guard is killed before the watching process exists. `preexec_fn` is safe
        # here, because there are no threads yet.
        preexec_fn=lambda: library.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509
    )
    watched = _watched(server.pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: _end(server))
    threading.Thread(target=_hold, args=(server,), daemon=True).start()
    status = server.wait()
    _send(server.pid, signal.SIGKILL)
    os.close(watched)
    os._exit(status if status >= 0 else 128 - status)


def _watched(group: int) -> int:
    """Forks a process that kills the process group ``group`` when the guard ends in any way.

    The function returns the descriptor of a pipe that only the guard keeps open. The forked process waits until the
    pipe is closed.
    """
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(write)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.read(read, 1)
        _send(group, signal.SIGKILL)
        os._exit(0)
    os.close(read)
    return write


def _hold(server: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    _end(server)


def _end(server: subprocess.Popen[bytes]) -> None:
    _send(server.pid, signal.SIGTERM)
    threading.Timer(GRACE, _send, (server.pid, signal.SIGKILL)).start()


def _send(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


if __name__ == "__main__":
    main()
