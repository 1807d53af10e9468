"""The interface of a judge, which scores replies while rollouts are still running, and of the candidates to score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from turnwise.types import Message, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One reply to score, with its context and reference.

    ``id`` is only a label. Scores depend on the content, so two candidates that differ only in ``id`` are scored by one
    request.
    """

    id: str
    prompt: tuple[Message, ...]  # the conversation up to the reply
    text: str  # the reply as the policy wrote it, including thinking and calls
    thinking: str  # the reply without its calls, as its parser split it
    calls: tuple[ToolCall, ...] | None  # the reply's calls; None if it does not parse
    reference: str | None  # a good rationale for this step, if there is one
    reference_calls: tuple[ToolCall, ...]  # the correct calls
    tools: tuple[Mapping[str, Any], ...] = ()  # tool definitions that the policy saw


class Judge(Protocol):
    """Scores replies. A score is in [0, 1] and one of the tiers of :mod:`turnwise.judges.rubric`.

    A reply without a score gets None, never 0.
    """

    def submit(self, candidate: Candidate) -> Future[float | None]:
        """Starts scoring and returns at once. The future does not raise if the endpoint fails."""
        ...

    def __call__(self, candidates: Iterable[Candidate]) -> list[float | None]:
        """Waits for all scores and returns them in the order of ``candidates``."""
        ...

    def report(self) -> dict[str, float]:
        """Returns counts, spend and rates so far (docs/judges.md)."""
        ...

    def close(self) -> None:
        """Cancels running questions; their scores are None."""
        ...


def gather(judge: Judge, candidates: Iterable[Candidate]) -> list[float | None]:
    """Submits all candidates, then waits for all scores."""
    return [future.result() for future in [judge.submit(candidate) for candidate in candidates]]
