"""What every table of benchmarks is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
"""What a benchmark wrote with --json."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def machines(results: Any) -> str:
    """What the numbers were measured on, each machine once."""
    found = []
    for result in results:
        machine = result.get("machine", {})
        words = f"{machine.get('gpu') or machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('threads')} threads, "
        words += f"torch {machine.get('torch')}"
        if words not in found:
            found.append(words)
    return "Measured on: " + "; ".join(found) + "."
