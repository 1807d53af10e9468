"""A real HTTP server, candidates, and a judge whose pauses are short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from tests import judge_server as server

from turnwise.judges.endpoint import ChatClient, EndpointJudge
from turnwise.judges.judge import Candidate
from turnwise.types import ToolCall


@pytest.fixture(scope="session")
def judge_server() -> ModuleType:
    return server


def make_candidate(n: int = 0, **changes: Any) -> Candidate:
    """A reply that finds the first of two true words: the naive endpoint gives 0.25 + 0.5 x (share of words found)."""
    fields: dict[str, Any] = {
        "id": f"c{n}",
        "prompt": ({"role": "system", "content": "use tools"}, {"role": "user", "content": f"weather in town {n}?"}),
        "text": f"I look up the weather of town {n}. weather",
        "thinking": f"I look up the weather of town {n}. weather",
        "calls": (ToolCall("weather", {"town": str(n)}),),
        "reference": f"The user asks for the weather in town {n}, so I look it up.",
        "reference_calls": (ToolCall("weather", {"town": str(n)}),),
    }
    return Candidate(**{**fields, **changes})


class Asked(EndpointJudge):
    """A judge that is called with candidates and waits for their scores."""

    def __call__(self, candidates: list[Candidate]) -> list[float | None]:
        return [future.result() for future in [self.submit(candidate) for candidate in candidates]]


@pytest.fixture
def candidate() -> Callable[..., Candidate]:
    return make_candidate


@pytest.fixture
def make_judge() -> Iterator[Callable[..., EndpointJudge]]:
    """(url, client settings, judge settings) -> a judge, closed with the test."""
    judges = []

    def make(url: str, client: dict[str, Any] | None = None, **settings: Any) -> EndpointJudge:
        quick = {"attempts": 2, "attempt_limit": 20.0, "time_limit": 40.0, "backoff": 0.01}
        judge = Asked(ChatClient(url, **{**quick, **(client or {})}), "naive", **settings)
        judges.append(judge)
        return judge

    yield make
    for judge in judges:
        judge.close()
