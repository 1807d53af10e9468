"""Terminal output, numeric options, the arguments that a user typed, and Ctrl-C, for all command-line programs."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from turnwise.text import plain


class Terminal(Console):
    """A Rich console that prints strings literally, also in tables and titles: it interprets no markup or emoji names
    and adds no colours. Rich would read ``[/red]`` in a string as markup, and would fail if there is no tag to close. A
    caller that wants a style passes ``style=``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        """Rich calls this for every string."""
        return super().render_str(plain(text), **options)


def number(least: float, most: float, whole: bool = False) -> Callable[[str], Any]:
    """For ``type`` of ``argparse``: converts the text of an option to a number from ``least`` to ``most``."""

    def parse(text: str) -> Any:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: give a {'whole ' * whole}number from {least:g} to {most:g}")
        return value

    return parse


def until_stopped(main: Callable[[], int]) -> int:
    """Ctrl-C prints one line instead of a traceback, with exit status 130."""
    try:
        return main()
    except KeyboardInterrupt:
        Terminal(stderr=True).print("stopped by SIGINT")
        return 130


def sized(width: int) -> Terminal:
    """A console on standard output, which has this width where the output is a file or a pipe."""
    console = Terminal()
    return console if console.is_terminal else Terminal(width=width)


HELD = "hydra.sweeper.arguments=["  # begins the argument in which a sweep holds what the user typed


def typed_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments that the user typed from those that Hydra got for a sweep, with Hydra's own ones last."""
    held = next((a for a in arguments if a.startswith(HELD)), None)
    if held is None:
        return list(arguments)
    own = [re.sub(r"\\(['$])", r"\1", part) for part in re.findall(r"'((?:\\.|[^'\\])*)'", held)]
    made = ("--multirun", "hydra/sweeper=", "hydra.sweeper.")
    return [*own, *(a for a in arguments if not a.startswith(made))]
