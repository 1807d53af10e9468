"""Steps that prepare a run: what is missing names the section of docs/cluster.md that brings it."""

from __future__ import annotations

import re
from collections.abc import Iterable

PAGE = "docs/cluster.md"
_LINK = re.compile(rf"{re.escape(PAGE)}#([\w-]+)")


def at_step(reason: str, name: str) -> str:
    """The reason with the section that says how to bring what is missing."""
    return f"{reason} ({PAGE}#{name})"


def steps_in(reasons: Iterable[str]) -> list[str]:
    """The sections that the reasons name, each once, in their order."""
    return list(dict.fromkeys(name for reason in reasons for name in _LINK.findall(reason)))
