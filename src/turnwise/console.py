"""The terminal that programs here write to. Data cannot format it, stop it, or hold control characters for it."""

from __future__ import annotations

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


def sized(width: int) -> Terminal:
    """Standard output; a file or a pipe, which has no width of its own, gets ``width``."""
    console = Terminal()
    return console if console.is_terminal else Terminal(width=width)
