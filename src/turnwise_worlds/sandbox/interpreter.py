"""The program of a Python interpreter in a sandbox: it runs snippets, each in the names that the earlier ones defined.

The sandbox receives this file as text. A request on standard input is a length of four bytes and the snippet. The
output goes to standard output, and one byte with the exit status to the descriptor in the first argument.
"""

import ast
import fcntl
import os
import random
import resource
import struct
import sys
import traceback

REQUESTS, REPORTS = 3, 4


def execute(code, names):
    """Runs a snippet and returns its exit status. Prints the ``repr`` of the value of a last expression, if not None."""
    try:
        body = ast.parse(code, "<snippet>").body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<snippet>", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "<snippet>", "eval"), names)
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


def main():
    reports, limits = int(sys.argv[1]), map(int, sys.argv[2].split(","))
    if os.getpid() != 1:  # the host ends all processes of the sandbox by ending process 1
        sys.exit("the interpreter must be process 1 of a sandbox")
    for number, limit in zip((resource.RLIMIT_AS, resource.RLIMIT_NPROC), limits, strict=True):
        resource.setrlimit(number, (limit, limit))
    for number, limit in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, 64), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(number, (limit, limit))
    spare = fcntl.fcntl(reports, fcntl.F_DUPFD, 10)  # above the two numbers that are assigned next
    os.dup2(0, REQUESTS, inheritable=False)
    os.dup2(spare, REPORTS, inheritable=False)
    nowhere = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.closerange(REPORTS + 1, 64)
    requests = os.fdopen(REQUESTS, "rb", closefd=False)
    random.seed(0)  # so that a snippet which is repeated for another branch draws the same numbers
    names = {"__name__": "__main__"}
    os.write(REPORTS, b"\0")
    while header := requests.read(4):
        status = execute(requests.read(struct.unpack("=I", header)[0]).decode(), names)
        if os.getpid() != 1:  # a child of the snippet, which the host kills
            os._exit(status & 255)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # the snippet has replaced or closed the stream
                status = status or 1
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        os.write(REPORTS, bytes([status & 255]))


main()
