"""The interface of a judge, which scores the policy's replies while rollouts are still running, and its rubric.

A score is a weighted mean of four dimensions, limited by caps and rounded to a tier (AWPO, arXiv:2512.19126, App. B.2).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from turnwise.errors import InputError
from turnwise.types import Message, ToolCall

TIERS = (1.00, 0.90, 0.75, 0.50, 0.25, 0.00)
WEIGHTS = {"reasoning": 0.35, "tools": 0.30, "parameters": 0.25, "conduct": 0.10}

# Caps: the highest score of a reply if a parameter differs, a tool is missing, or a tool is invented.
PARAMETER_DIFFERS = 0.75
TOOL_MISSING = 0.50
TOOL_INVENTED = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A reply of the policy that a judge is to score, with the conversation before the reply and the reference."""

    id: str  # only a label: candidates that differ only in ``id`` share one request
    prompt: tuple[Message, ...]  # the conversation up to the reply
    text: str  # the reply as the policy wrote it, including thinking and tool calls
    thinking: str  # the reply's text without its tool calls
    calls: tuple[ToolCall, ...] | None  # the reply's tool calls; None if the reply cannot be parsed
    reference: str | None  # a reference rationale for this step; None: there is none
    reference_calls: tuple[ToolCall, ...]  # the correct tool calls
    tools: tuple[Mapping[str, Any], ...] = ()  # the tool definitions that the policy saw


class Judge(Protocol):
    """Scores replies. A score is one of ``TIERS``, which are numbers in [0, 1]."""

    def submit(self, candidate: Candidate) -> Future[float | None]:
        """Starts to score a candidate and returns at once. The future's result is the score; None if scoring failed."""
        ...

    def __call__(self, candidates: Iterable[Candidate]) -> list[float | None]:
        """Returns the scores of all candidates in the order of ``candidates``; None where scoring failed."""
        ...

    def report(self) -> dict[str, float]:
        """Returns the counts of all questions so far, by name (see docs/judges.md)."""
        ...

    def close(self) -> None:
        """Cancels all questions that are still running. Their futures get the result None."""
        ...


def gather(judge: Judge, candidates: Iterable[Candidate]) -> list[float | None]:
    """Submits all candidates, waits for all scores, and returns the scores in the order of ``candidates``."""
    return [future.result() for future in [judge.submit(candidate) for candidate in candidates]]


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
