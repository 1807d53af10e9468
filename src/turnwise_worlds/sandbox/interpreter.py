"""The program of a Python interpreter in a sandbox: it runs the snippets of a file, each in the names that the earlier ones
defined. Only the last one prints. The sandbox receives this file as text; the argument is the time limit of a snippet.
"""

import ast
import json
import os
import random
import signal
import sys
import traceback


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
    with open("snippets", encoding="utf-8") as file:  # noqa: PTH123 (pathlib is slow to import)
        snippets = json.load(file)
    sys.path.remove("")
    seconds, own, output = float(sys.argv[1]), os.getpid(), os.dup(1)
    nowhere = os.open("/dev/null", os.O_WRONLY)
    random.seed(0)  # so that a snippet which is repeated for another branch draws the same numbers
    names = {"__name__": "__main__"}
    status = 0
    for number, code in enumerate(snippets, start=1):
        last = number == len(snippets)
        for descriptor in (1, 2):
            os.dup2(output if last else nowhere, descriptor)
        if last:
            os.closerange(3, 64)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        status = execute(code, names)
        if os.getpid() != own:  # a child of the snippet
            os._exit(status & 255)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # the snippet has replaced or closed the stream
                status = status or 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        with open("/box/ended", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(str(number))
    os._exit(status & 255)


main()
