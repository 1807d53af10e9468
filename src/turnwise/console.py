"""What all command-line programs of this project share: a console that prints data literally, and readers of numeric
options.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from turnwise.text import plain


class Terminal(Console):
    """A Rich console that prints strings literally, also in tables and titles: without markup, emoji names or automatic
    colours.

    Rich would read ``[/red]`` in a string as markup, and would fail if there is no tag to close. A caller that wants a
    style passes ``style=``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        """Converts every string that is printed, without reading it as markup."""
        return super().render_str(plain(text), **options)


def number(least: float, most: float, whole: bool = False) -> Callable[[str], Any]:
    """Returns a ``type`` for an ``argparse`` option that accepts a number from ``least`` to ``most``."""

    def parse(text: str) -> Any:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: give a {'whole ' * whole}number from {least:g} to {most:g}")
        return value

    return parse


def unwritten(error: OSError) -> str:
    """Returns a one-line message about a file that a program could not write."""
    return f"{error.filename or 'a file'}: cannot be written ({error.strerror or error}); name another place"


def until_stopped(main: Callable[[], int]) -> int:
    """Runs ``main`` and returns its exit status, or 130 after Ctrl-C, for which one line is printed instead of a
    traceback.
    """
    try:
        return main()
    except KeyboardInterrupt:
        Terminal(stderr=True).print("stopped by SIGINT")
        return 130


def sized(width: int) -> Terminal:
    """Returns a console on standard output. If that is a file or a pipe, which has no width of its own, ``width`` is
    used.
    """
    console = Terminal()
    return console if console.is_terminal else Terminal(width=width)
