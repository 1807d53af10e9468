"""What programs here share at a terminal: a console that data cannot format or stop, and numbers of the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from turnwise.text import plain


class Terminal(Console):
    """A console that prints strings as they are, in tables and titles too: no markup, no emoji names, no colours of its own.

    Rich reads ``[/red]`` in a string as markup and fails where it closes nothing. Whoever wants a style passes ``style=``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        """Every string that is printed comes through here."""
        return super().render_str(plain(text), **options)


def number(least: float, most: float, whole: bool = False) -> Callable[[str], Any]:
    """Returns a type of ``argparse`` options: a number from ``least`` to ``most``."""

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
    """Returns one line about a file that a program could not write."""
    return f"{error.filename or 'a file'}: cannot be written ({error.strerror or error}); name another place"


def until_stopped(main: Callable[[], int]) -> int:
    """Returns the exit status of a program: that of ``main``, or 130 after Ctrl-C, which is one line."""
    try:
        return main()
    except KeyboardInterrupt:
        Terminal(stderr=True).print("stopped by SIGINT")
        return 130


def sized(width: int) -> Terminal:
    """Standard output; a file or a pipe, which has no width of its own, gets ``width``."""
    console = Terminal()
    return console if console.is_terminal else Terminal(width=width)
