"""What a judge is asked, and the interface by which it answers while rollouts are still running."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.types import Message, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One reply to grade, with what it is held against.

    ``id`` is for people: scores depend on the content alone, and two candidates that differ in nothing else share one call.
    """

    id: str
    prompt: tuple[Message, ...]  # the conversation up to the reply
    text: str  # the reply as the policy wrote it, thinking and calls included
    thinking: str  # the reply without its calls, as its parser split it
    calls: tuple[ToolCall, ...] | None  # the reply's calls; None where it does not parse
    reference: str | None  # a good rationale for this step; None where there is none
    reference_calls: tuple[ToolCall, ...]  # the true calls
    tools: tuple[Mapping[str, Any], ...] = ()  # definitions that the policy was shown


class Judge(Protocol):
    """Scores in [0, 1], the tiers of :mod:`turnwise.judges.rubric`. None means that no score could be had: never a zero."""

    def submit(self, candidate: Candidate) -> Future[float | None]:
        """Ask, and return at once. The future never raises for a failing endpoint."""
        ...

    def __call__(self, candidates: Iterable[Candidate]) -> list[float | None]:
        """Scores in the order of ``candidates``; waits for all of them."""
        ...

    def report(self) -> dict[str, float]:
        """Counts, spend and rates so far (docs/judges.md)."""
        ...

    def close(self) -> None:
        """End what is running; questions without an answer become None."""
        ...


def gather(judge: Judge, candidates: Iterable[Candidate]) -> list[float | None]:
    """Submit all, then wait for all."""
    return [future.result() for future in [judge.submit(candidate) for candidate in candidates]]
