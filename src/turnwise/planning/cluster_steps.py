"""Adds to each reason why a run cannot start a link to the section of docs/cluster.md that explains the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable

PAGE = "docs/cluster.md"
_LINK = re.compile(rf"{re.escape(PAGE)}#([\w-]+)")


def at_step(reason: str, name: str) -> str:
    """Returns ``reason``, why a run cannot start, with a link to the section ``name`` of docs/cluster.md."""
    return f"{reason} ({PAGE}#{name})"


def steps_in(reasons: Iterable[str]) -> list[str]:
    """Returns the sections of docs/cluster.md that the reasons link to, each once, in the order of the reasons."""
    return list(dict.fromkeys(name for reason in reasons for name in _LINK.findall(reason)))
