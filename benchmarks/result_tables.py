"""Contains code that the tables of all benchmarks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
"""The JSON object that a benchmark wrote with --json."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def ratio_or_dash(value: float | None) -> str:
    """Returns a ratio with three digits, or a dash if it was not measured."""
    return "-" if value is None else f"{value:.3g}"


def machines(results: Any) -> str:
    """Returns a description of the machines on which the numbers were measured, each machine once."""
    found = []
    for result in results:
        machine = result.get("machine", {})
        words = f"{machine.get('gpu') or machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('threads')} threads, "
        words += f"torch {machine.get('torch')}"
        if words not in found:
            found.append(words)
    return "Measured on: " + "; ".join(found) + "."
