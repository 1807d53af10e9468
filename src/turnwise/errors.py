"""What goes wrong by a person's hand, as opposed to ours."""

from __future__ import annotations

import signal
from collections.abc import Iterable

from turnwise.text import plain


class InputError(ValueError):
    """A configuration, file or folder that cannot be used. The message names it and the remedy; no traceback is shown.

    What it quotes of a file is escaped and cut, so that it can be printed.
    """

    def __str__(self) -> str:
        return plain(super().__str__())


def refuse_twice(arguments: Iterable[str]) -> None:
    """Refuses ``key=value`` arguments that name a key twice, of which a program would use one.

    Raises:
        InputError: one does.
    """
    seen: set[str] = set()
    for argument in arguments:
        key, sign, _ = argument.partition("=")
        if sign and key in seen:
            raise InputError(f"{argument}: {key} is given twice; keep one of them")
        seen.add(key)


class RowsFailed(RuntimeError):
    """Some runs of a sweep did not finish; the printed table shows which ones and why."""


class Stopped(RuntimeError):
    """A run that cannot go on by itself: its numbers or its machine gave out. The message says it all; what was saved stays."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the run in the middle of its training; what was saved stays."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number)
        self.number = number
