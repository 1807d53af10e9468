"""Defines the tiers, weights and caps of all judges' scores (AWPO, arXiv:2512.19126, App. B.2). Loads rubrics.

A score is a weighted mean of four dimensions, limited by caps and rounded to a tier.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from turnwise.errors import InputError

TIERS = (1.00, 0.90, 0.75, 0.50, 0.25, 0.00)
WEIGHTS = {"reasoning": 0.35, "tools": 0.30, "parameters": 0.25, "conduct": 0.10}

# Caps: the highest score of a reply if a parameter differs, a tool is missing, or a tool is invented.
PARAMETER_DIFFERS = 0.75
TOOL_MISSING = 0.50
TOOL_INVENTED = 0.25


@dataclass(frozen=True, slots=True)
class Rubric:
    """The scoring instructions for a judging model."""

    name: str
    text: str
    version: str  # the name and the first eight hex digits of the SHA-256 hash of the text


@cache
def load_rubric(name: str) -> Rubric:
    """Loads the rubric ``rubrics/<name>.txt``.

    Raises:
        InputError: there is no rubric with this name; the message lists the available rubrics.
    """
    folder = files("turnwise.judges") / "rubrics"
    texts = {item.name.removesuffix(".txt"): item for item in folder.iterdir() if item.name.endswith(".txt")}
    if name not in texts:
        raise InputError(f"rubric: there is no rubric {name!r}; choose one of {', '.join(sorted(texts))}")
    text = texts[name].read_text(encoding="utf-8")
    return Rubric(name, text, f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")


def snap(score: float) -> float:
    """Returns the tier nearest to ``score``. If two tiers are equally near, it returns the lower one.

    Raises:
        ValueError: ``score`` is not in [0, 1].
    """
    if not (math.isfinite(score) and 0 <= score <= 1):
        raise ValueError(f"score must be in [0, 1], got {score}")
    # Distances are rounded, because in floating point 0.95 is nearer to 0.90 than to 1.00.
    return min(TIERS, key=lambda tier: (round(abs(tier - score), 9), tier))
