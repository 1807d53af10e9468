"""A state of the Python server: a process that waits, copies itself, runs a snippet. Standard library only, sent as text.

``server.py`` follows it in the same program and gives the orders. An order is a message of a kind, the length of a text, the
text, and one descriptor. COPY: fork; the copy takes the descriptor as its own socket and reports there. RUN: run the text as a
snippet in this process, with the descriptor for its output, and report the exit status. Files that a snippet leaves open are
closed, because all copies would share an open file and its position.
"""

import _signal  # type: ignore[import-not-found]  # of signal, without its enumerations: they are many pages
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
FIRST = 1 << 15  # bytes of an order that its first message holds at most: a socket takes them while no process reads
GIVEN = socket.CMSG_SPACE(4)  # bytes of a message that brings one descriptor
CHANNEL, NOWHERE, DESCRIPTORS = 3, 4, 64  # this state's socket, /dev/null, and how many descriptors there may be
PR_SET_DUMPABLE, PR_SET_SECCOMP, SECCOMP_FILTER = 4, 22, 2


class Filter(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("rules", ctypes.c_char_p)]


def execute(code, names):
    """Run a snippet as a console would: the value of a last expression is shown. Returns an exit status."""
    try:
        try:  # one expression: without a tree it costs half
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
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # not the frame of this function
        traceback.print_exception(error)
        return 1


def fork():
    """os.fork with several tries: processes that were just killed count towards the limit until they are gone."""
    for _ in range(400):
        try:
            return os.fork()
        except BlockingIOError:
            time.sleep(0.005)
    return os.fork()


def serve(own):
    """The life of a state: one order after the other.

    After a fork, each page that a process writes to is copied first. So little is done here, and little Python is run.
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
            gc.freeze()  # a garbage collection in the copy would write to, and so copy, every page of objects
            if fork():
                os.close(given)
                continue
            os.dup2(given, own.fileno())
            os.close(given)
            try:
                own.send(bytes(4))
            except OSError:  # the broker does not wait for this copy any more
                os._exit(1)
            # This writes to, and so copies, now the pages that a snippet would otherwise wait for.
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            execute("None", {})
            sys.stdout.flush()
            sys.stderr.flush()
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
            except BaseException:  # replaced or closed by the snippet
                status = status or 1
        os.dup2(NOWHERE, 1)
        os.dup2(NOWHERE, 2)
        os.closerange(NOWHERE + 1, DESCRIPTORS)
        own.send(struct.pack("=i", status & 0xFF))


def settle():
    """Have the kernel remove dead children: copies are the broker's, and a snippet may have left others."""
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return True


def first_state(own, settings):
    """Bind this process to the limits of snippets, then serve."""
    os.chdir("/")  # out of the server's folder of processes
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
    library.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # the broker counts its open files; no other process can look
    if library.prctl(PR_SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(Filter(len(rules) // 8, rules)), 0, 0):
        raise OSError(ctypes.get_errno(), "the filter of system calls is refused")
    serve(own)
