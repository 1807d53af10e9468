"""Defines the interface of a judge, which scores the policy's replies while rollouts are still running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.types import Message, ToolCall


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
    """Scores replies. A score is one of the tiers of :mod:`turnwise.judges.rubric`, which are numbers in [0, 1]."""

    def submit(self, candidate: Candidate) -> Future[float | None]:
        """Starts to score a candidate and returns at once. The future's result is the score; None if scoring failed."""
        ...

    def __call__(self, candidates: Iterable[Candidate]) -> list[float | None]:
        """Returns the scores of all candidates in the order of ``candidates``; None where scoring failed."""
        ...

    def report(self) -> dict[str, float]:
        """Returns the counts, the cost and the rates of all questions so far, by name (see docs/judges.md)."""
        ...

    def close(self) -> None:
        """Cancels all questions that are still running. Their futures get the result None."""
        ...


def gather(judge: Judge, candidates: Iterable[Candidate]) -> list[float | None]:
    """Submits all candidates, waits for all scores, and returns the scores in the order of ``candidates``."""
    return [future.result() for future in [judge.submit(candidate) for candidate in candidates]]
