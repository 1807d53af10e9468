"""Provides what the programs in ``scripts/`` share: the parser of their options, and their message about an error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import wraps

from turnwise.errors import InputError
from turnwise.files import no_room, out_of_reach


def program(text: str | None = None) -> Callable[[Callable[[list[str]], int]], Callable[..., int]]:
    """Returns a decorator for the main function of a program, which then takes its arguments from the command line unless
    they are given. If a file, folder or argument cannot be used, it prints one line and returns the exit status 2.

    Args:
        text: the help text of a program without a parser of options. It is printed for ``--help``, and if there are no
            arguments.
    """

    def decorate(main: Callable[[list[str]], int]) -> Callable[..., int]:
        @wraps(main)
        def run(arguments: Sequence[str] | None = None) -> int:
            words = list(sys.argv[1:] if arguments is None else arguments)
            if text is not None and (not words or {"-h", "--help"} & set(words)):
                print(text)
                return 0 if words else 2
            try:
                return main(words)
            except InputError as error:
                print(error, file=sys.stderr)
            except OSError as error:
                place = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
                print(no_room(error, "a file") or out_of_reach(error) or place, file=sys.stderr)
            return 2

        return run

    return decorate


def options(description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
