"""Connects everything that a run lacks with the section of docs/cluster.md that explains how to get it."""

from __future__ import annotations

import re
from collections.abc import Iterable

PAGE = "docs/cluster.md"
_LINK = re.compile(rf"{re.escape(PAGE)}#([\w-]+)")


def at_step(reason: str, name: str) -> str:
    """Returns the reason with a link to the section that explains how to get what is missing."""
    return f"{reason} ({PAGE}#{name})"


def steps_in(reasons: Iterable[str]) -> list[str]:
    """Returns the sections that the reasons link to, each once, in order."""
    return list(dict.fromkeys(name for reason in reasons for name in _LINK.findall(reason)))
