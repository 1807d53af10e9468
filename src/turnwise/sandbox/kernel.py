"""What whoever watches processes asks of the kernel. Sent as text between ``state.py`` and ``server.py``, so it imports no other
file of ours; ``watch.py`` uses it on this side."""

# ruff: noqa: PTH123

import contextlib
import os
import resource
import signal
import socket
import struct


def take(read, output, most):
    """Read what is there, up to one byte more than is wanted; False at the end of the stream."""
    while len(output) <= most:
        try:
            chunk = os.read(read, 1 << 16)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        output += chunk
    return True


def report(channel):
    """A state's word that its snippet ended: (status, process), or (None, None) where it died without one."""
    space = socket.CMSG_SPACE(struct.calcsize("=3i")) + socket.CMSG_SPACE(4 * 16)
    try:
        said, extra, _, _ = channel.recvmsg(4, space)
    except OSError:
        return None, None
    for _, kind, data in extra:
        if kind == socket.SCM_CREDENTIALS and len(said) == 4:
            return struct.unpack("=i", said)[0], struct.unpack("=3i", data)[0]
    return None, None


def resident(process):
    try:
        with open(f"/proc/{process}/statm") as stream:
            return int(stream.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def ended(process):
    """Whether a process is gone, or dead and only its parent has not asked for it."""
    try:
        with open(f"/proc/{process}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def stop_all():
    """Stop every other process of this namespace."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGSTOP)
