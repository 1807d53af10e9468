"""Links the reasons why a run cannot start to the sections of docs/cluster.md that explain the remedies."""

from __future__ import annotations

import re
from collections.abc import Iterable

PAGE = "docs/cluster.md"
_LINK = re.compile(rf"{re.escape(PAGE)}#([\w-]+)")


def at_step(reason: str, name: str) -> str:
    """Returns ``reason`` followed by a link to the section ``name`` of docs/cluster.md."""
    return f"{reason} ({PAGE}#{name})"


def steps_in(reasons: Iterable[str]) -> list[str]:
    """Returns the names of the sections of docs/cluster.md to which the reasons link, each name once."""
    return list(dict.fromkeys(name for reason in reasons for name in _LINK.findall(reason)))
