"""Runs a server and ends it with whoever asked for it: ``python guard.py -- command``.

Standard input is the leash. When it closes, because the owner has ended or was killed, the whole process group goes; when the
server ends by itself, what it leaves running goes too, and so it does when this process is killed. Exit status: the server's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

GRACE = 5.0  # s between asking and killing
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main() -> None:
    """Raises nothing: whatever happens, the group is gone when this process is."""
    library = ctypes.CDLL(None)
    server = subprocess.Popen(
        sys.argv[sys.argv.index("--") + 1 :],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        # the server at once, should the guard be killed before anybody watches it; it has no thread yet
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
    """A twin that kills the group once nobody holds the descriptor that this answers, which nobody but the guard does."""
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
