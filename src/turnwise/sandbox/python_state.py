"""Implements a Python state of the Python server: a process that waits for orders from the broker (``broker.py``).

An order has a kind, the length of a text, the text, and one file descriptor. COPY: the process forks, and the copy
sends a report on the descriptor, which is its own socket. RUN: the process runs the text as a snippet, writes the
output to the descriptor, and reports the exit status.
"""

# The C module ``_signal`` is used, because the enumerations of the module ``signal`` take many pages of memory.
import _signal  # type: ignore[import-not-found]
import ast
import ctypes
import gc
import os
import resource
import socket
import struct
import sys
import time
import traceback

COPY, RUN = b"c", b"r"
ORDER = struct.Struct("=cI")
FIRST = 1 << 15  # maximum number of bytes in an order's first message, which a socket accepts while no process reads
GIVEN = socket.CMSG_SPACE(4)  # size in bytes of the control data that passes one descriptor
CHANNEL, NOWHERE, DESCRIPTORS = 3, 4, 64  # descriptors of this state's socket and of /dev/null; number of descriptors
PR_SET_DUMPABLE, PR_SET_SECCOMP, SECCOMP_FILTER = 4, 22, 2


class Filter(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("rules", ctypes.c_char_p)]


def execute(code, names):
    """Runs a snippet and returns its exit status. If the snippet ends with an expression, prints the ``repr`` of its
    value unless this is None.
    """
    try:
        try:  # first treats the snippet as one expression: this needs no syntax tree and takes half the time
            shown = compile(code, "<snippet>", "eval")
        except SyntaxError:
            shown = None
        if shown is None:
            body = ast.parse(code, "<snippet>").body
            last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), "<snippet>", "exec"), names)
            if last is not None:
                shown = compile(ast.Expression(last.value), "<snippet>", "eval")
        value = None if shown is None else eval(shown, names)
        if value is not None:
            print(repr(value))
        return 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        # removes the frame of this function from the traceback
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        traceback.print_exception(error)
        return 1


def fork():
    """Calls os.fork, up to 401 times: killed processes count toward the limit on processes until they have ended."""
    for _ in range(400):
        try:
            return os.fork()
        except BlockingIOError:
            time.sleep(0.005)
    return os.fork()


def serve(own):
    """Executes the orders that arrive on the socket ``own``, one after the other, forever.

    After a fork, the kernel copies each memory page to which a process writes. So this loop writes to few pages.
    """
    names = {"__name__": "__main__"}
    settled = False
    while True:
        first, extra, _, _ = own.recvmsg(FIRST, GIVEN)
        given = int.from_bytes(extra[0][2], sys.byteorder)
        kind, size = ORDER.unpack_from(first)
        if kind == COPY:
            if not settled:
                settled = settle()
            gc.freeze()  # otherwise a garbage collection in the copy would write to, and so copy, every page of objects
            if fork():
                os.close(given)
                continue
            os.dup2(given, own.fileno())
            os.close(given)
            try:
                own.send(bytes(4))
            except OSError:  # the broker does not wait for this copy any more
                os._exit(1)
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            settled = False
            continue
        text = bytearray(first[ORDER.size :])
        while len(text) < size:
            text += own.recv(1 << 16)
        os.dup2(given, 1)
        os.dup2(given, 2)
        os.close(given)
        status = execute(text.decode(), names)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # the snippet has replaced or closed the stream
                status = status or 1
        os.dup2(NOWHERE, 1)
        os.dup2(NOWHERE, 2)
        os.closerange(NOWHERE + 1, DESCRIPTORS)  # otherwise all copies would share the snippet's open files
        own.send(struct.pack("=i", status & 0xFF))


def settle():
    """Removes dead child processes, and makes the kernel remove later ones automatically.

    The children are copies of this Python state and processes that a snippet left behind.
    """
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return True


def first_state(own, settings):
    """Turns this process into the first Python state, of which all other states are copies.

    Applies the limits for snippets, then executes the orders that the broker sends (:func:`serve`).
    """
    os.chdir("/")  # leaves the server's working folder, which shows all processes
    channel = os.dup2(own.detach(), DESCRIPTORS - 1, inheritable=False)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.dup2(nowhere, NOWHERE, inheritable=False)
    os.dup2(channel, CHANNEL, inheritable=False)
    os.closerange(NOWHERE + 1, DESCRIPTORS)
    own = socket.socket(fileno=CHANNEL)
    for name, value in settings["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    rules = bytes.fromhex(settings["filter"])
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # lets the broker, and no other process, see this process's open files
    if library.prctl(PR_SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(Filter(len(rules) // 8, rules)), 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel refuses the filter of system calls")
    serve(own)
