"""Exceptions for errors that a user can correct, and for runs that end early although the code has no bug."""

from __future__ import annotations

import os
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from turnwise.text import plain

if TYPE_CHECKING:
    from pydantic import ValidationError


class InputError(ValueError):
    """Raised if a configuration, file or folder cannot be used. The message says which one, why, and how to correct it.

    Control characters in the message are escaped and long lines are cut, because the message may quote a file.
    """

    def __str__(self) -> str:
        return plain(super().__str__())


def refuse_twice(arguments: Iterable[str]) -> None:
    seen: set[str] = set()
    for argument in arguments:
        key, sign, _ = argument.partition("=")
        if sign and key in seen:
            raise InputError(f"{argument}: {key} is given twice; keep one of them")
        seen.add(key)


class RowsFailed(RuntimeError):
    """Raised if some runs of a sweep did not finish. The sweep's table in the terminal shows which runs, and why."""


class Stopped(RuntimeError):
    """Raised if a run has to stop, for example because its gradients are not finite, its memory is not sufficient or
    one of its processes failed. The message says why. Everything that the run has saved so far is kept.
    """


class Checked(Exception):
    """Ends a run with ``check=true`` whose checks have all passed."""


class Interrupted(KeyboardInterrupt):
    """Raised if a signal ended the run during training. Everything that the run has saved so far is kept."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number)
        self.number = number


def in_own_code(error: BaseException) -> str | None:
    """``KeyError: 'price' (mine/shop.py:12)`` if a file of the user raised the error, also through the standard library,
    else None. Files of the user are below the working directory or an entry of PYTHONPATH.
    """
    standard = (sysconfig.get_path("stdlib"), "<")
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    places = [place for place in places if "-packages" in place[0] or not place[0].startswith(standard)]
    if not places:
        return None
    file, line = places[-1]
    folders = [Path.cwd(), *map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    main = getattr(sys.modules["__main__"], "__file__", None) or ""
    others = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]), str(Path(main).absolute()))
    own = any(Path(file).is_relative_to(folder.absolute()) for folder in folders)
    if not own or file.startswith(others) or "-packages" in file:
        return None
    said = error.msg if isinstance(error, SyntaxError) else first_line(error)
    return f"{type(error).__name__}: {said} ({file}:{line})"


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def first_mistake(error: ValidationError) -> tuple[str, str]:
    """The first mistake that a pydantic model found in a value: where (``messages[2].role``), and in words."""
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    what = re.sub(r"a valid dictionary or instance of \w+", "an object", first["msg"]).replace("Input should", "must")
    return place, f"{f'{place}: ' if place else ''}{what}, got {first['input']!r:.80}"
