"""Opens and reads the sockets and pipes by which the broker talks to Python states and to the host.

The Python server receives this file as text, before ``broker.py``. So this file imports no other file of Turnwise.
"""

import json
import os
import socket
import struct
import sys


class Channel(socket.socket):
    """The broker's end of a socket pair by which the broker (process 1 of the sandbox) talks to a Python state.

    ``peer`` is the inode number of the state's end.
    """

    peer: int


def pair():
    """Creates a socket pair. Returns first the broker's end, then the end for a Python state."""
    ours, theirs = socket.socketpair()
    ours = Channel(fileno=ours.detach())
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.peer = os.fstat(theirs.fileno()).st_ino
    return ours, theirs


def take(read, output, most):
    """Appends the bytes that the pipe ``read`` holds now to ``output``, until ``output`` has more than ``most`` bytes.

    Returns False if the pipe has ended, otherwise True.
    """
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
    """Reads a report from a Python state. A state reports when it starts as a copy, and when its snippet has ended.

    Returns the exit status and the id of the reporting process. Both are None if the process died without a report.
    """
    space = socket.CMSG_SPACE(struct.calcsize("=3i")) + socket.CMSG_SPACE(4 * 16)
    try:
        said, extra, _, _ = channel.recvmsg(4, space)
    except OSError:
        return None, None
    for _, kind, data in extra:
        if kind == socket.SCM_CREDENTIALS and len(said) == 4:
            return struct.unpack("=i", said)[0], struct.unpack("=3i", data)[0]
    return None, None


def receive():
    """Returns the next request from the host. If the host has ended, this process exits."""
    header = sys.stdin.buffer.read(4)
    if len(header) < 4:
        os._exit(0)
    return json.loads(sys.stdin.buffer.read(struct.unpack("=I", header)[0]))
