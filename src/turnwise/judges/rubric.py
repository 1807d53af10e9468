"""Defines the scale of all judges: weights, tiers and caps (AWPO, arXiv:2512.19126, App. B.2), and loads rubric texts.

The texts are ``rubrics/<name>.txt``. A changed text is a new version, so cached scores of the old text are not reused.
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

# The highest scores that a reply with a certain flaw can get.
PARAMETER_DIFFERS = 0.75
TOOL_MISSING = 0.50
TOOL_INVENTED = 0.25


@dataclass(frozen=True, slots=True)
class Rubric:
    """The instructions for a judging model.

    ``version`` is the rubric's name and eight hex digits of its text's hash.
    """

    name: str
    text: str
    version: str


@cache
def load_rubric(name: str) -> Rubric:
    """Loads a rubric of the package.

    Raises:
        InputError: there is no rubric of this name; the message lists the available ones.
    """
    folder = files("turnwise.judges") / "rubrics"
    texts = {item.name.removesuffix(".txt"): item for item in folder.iterdir() if item.name.endswith(".txt")}
    if name not in texts:
        raise InputError(f"rubric: there is no {name!r}; choose one of {', '.join(sorted(texts))}")
    text = texts[name].read_text(encoding="utf-8")
    return Rubric(name, text, f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")


def snap(score: float) -> float:
    """Returns the tier nearest to ``score``. Half-way between two tiers, it returns the lower one.

    Raises:
        ValueError: ``score`` is not in [0, 1].
    """
    if not (math.isfinite(score) and 0 <= score <= 1):
        raise ValueError(f"score must be in [0, 1], got {score}")
    # rounded, because in floating point 0.95 is nearer to 0.90 than to 1.00
    return min(TIERS, key=lambda tier: (round(abs(tier - score), 9), tier))
