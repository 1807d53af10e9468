"""Reads information about processes from the kernel, for the Python server in a sandbox and for the host.

The Python server receives this file as text, before ``broker.py``. So this file imports no other file of Turnwise.
"""

# ruff: noqa: PTH115, PTH123, PTH208

import contextlib
import ctypes
import os
import resource
import signal
import struct
import time

PROCESSES = "/proc"  # in the broker, its working folder, which no other process of the sandbox can open

TYPE_CHECKING = False
if TYPE_CHECKING:
    from turnwise.sandbox.python_state import CHANNEL, NOWHERE

PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, CAPABILITIES_V3 = 47, 4, 0x20080522


def enter():
    """Makes this module read information about processes from the current folder, which must be a /proc folder.

    The process then gives up all capabilities permanently, so that no process that it creates can open this folder.
    """
    global PROCESSES  # noqa: PLW0603 (the program is one text, so a global is simplest)
    PROCESSES = "."
    library = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", CAPABILITIES_V3, 0)
    library.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if library.capset(header, bytes(24)):
        raise OSError(ctypes.get_errno(), "the capabilities cannot be given up")


def open_files(process):
    """Returns the open files of a process as a mapping from descriptor to name.

    Returns None if the process has ended or does not allow access.
    """
    place = f"{PROCESSES}/{process}/fd"
    try:
        return {int(name): os.readlink(f"{place}/{name}") for name in os.listdir(place)}
    except OSError:
        return None


def name_of(peer):
    return f"socket:[{peer}]"


def bare(process, channel, excused):
    """Returns whether the process of a Python state has only open files that are allowed.

    The allowed files are /dev/null, the state's own socket, and the sockets whose inode numbers are in ``excused``.
    With any other open file, two states could exchange data.
    """
    held, excused = open_files(process) or {}, set(map(name_of, excused))
    rest = {number: what for number, what in held.items() if what not in excused}
    return rest == {CHANNEL: name_of(channel.peer)} | dict.fromkeys((0, 1, 2, NOWHERE), "/dev/null")


def lets_go(process, channel, seconds):
    """Waits until a process has closed the other end of ``channel``, which a Python state passes to its copy.

    Returns False if the process still has this socket open after ``seconds``, otherwise True.
    """
    end = time.monotonic() + seconds
    while name_of(channel.peer) in (open_files(process) or {}).values():
        if time.monotonic() > end:
            return False
        time.sleep(0.0002)
    return True


def resident(process):
    try:
        with open(f"{PROCESSES}/{process}/statm") as stream:
            return int(stream.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def ended(process):
    """Returns whether a process has ended. A zombie counts as ended."""
    try:
        with open(f"{PROCESSES}/{process}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def stop_all():
    """Stops (SIGSTOP) every other process in this process namespace."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGSTOP)
