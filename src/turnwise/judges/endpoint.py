"""Implements a judge that gets its scores from a judging model at an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnwise.endpoints import Fault, key_from
from turnwise.errors import InputError
from turnwise.judges.chat import CachedModel, key_of
from turnwise.judges.judge import Candidate, Rubric, gather, load_rubric, snap
from turnwise.judges.prompt import AnswerError, Structured, new_code, question, read_score, repair, response_format
from turnwise.text import said

_REQUESTS = ("calls", "answered", "prompt_tokens", "completion_tokens")
_COUNTS = ("asked", "scored", "failed", "cached", "shared", "repaired", "cache_errors")


@dataclass(slots=True)
class EndpointJudge(CachedModel):
    """Gets scores from a judging model (AWPO, arXiv:2512.19126, App. B.2) and caches them by the question's content.

    Questions run in a separate thread while the caller continues. If an answer contains no valid score, the model is
    asked once more with a note about the error. If the second answer contains no valid score either, the score is None.
    Failures are counted by their reason and are not cached.

    Args:
        rubric: name of a rubric in ``judges/rubrics``.
        structured: how the server is asked for JSON; use ``none`` for a server that refuses ``response_format``.
    """

    what: ClassVar[str] = "judge"
    ours: ClassVar[tuple[str, ...]] = (*CachedModel.ours, "response_format")
    rubric: str = "tool_use_v1"
    structured: Structured = "json_schema"
    _rubric: Rubric = field(init=False, repr=False)
    _pending: dict[str, asyncio.Task[tuple[float | None, str]]] = field(default_factory=dict, init=False, repr=False)
    _why: str = field(default="", init=False, repr=False)  # reason of the last question that got no score

    def __post_init__(self) -> None:
        CachedModel.__post_init__(self)  # a dataclass with slots cannot use super()
        self._rubric = load_rubric(self.rubric)

    def submit(self, candidate: Candidate) -> Future[float | None]:
        """Starts to score a candidate and returns at once. The future's result is the score; None if scoring failed.

        Raises:
            InputError: the cache cannot be opened. This can happen only at the first candidate.
        """
        return self.open().start(self._judge(candidate))

    def __call__(self, candidates: Iterable[Candidate]) -> list[float | None]:
        return gather(self, candidates)

    def prove(self, candidate: Candidate) -> None:
        """Tests the endpoint with one question, which is not counted as a candidate.

        Raises:
            InputError: the question got no score. The error message contains the server's answer with secrets masked.
        """
        score = self.submit(candidate).result()
        self._counts.clear()
        if score is None:
            self.close()
            raise InputError(
                f"judge at {self.client.url}: the test question got no score ({self._why}); check judge.client.url, "
                f"judge.model ({self.model}), judge.structured ({self.structured}), judge.max_tokens, "
                f"judge.client.attempt_limit ({self.client.attempt_limit:g} s) and the key in {self.client.key_variable}, "
                "or choose judge=offline"
            )

    def report(self) -> dict[str, float]:
        counts = {name: self._counts[name] for name in _COUNTS}
        reasons = {name: count for name, count in sorted(self._counts.items()) if name.startswith("failed/")}
        return {**counts, **reasons, **dict.fromkeys(_REQUESTS, 0), **self.client.tally}

    async def _judge(self, candidate: Candidate) -> float | None:
        self._counts["asked"] += 1
        key = key_of(self._request(question(self._rubric, candidate, code="")))
        task = self._pending.get(key)
        if task is not None:
            self._counts["shared"] += 1
        else:
            task = self._pending[key] = asyncio.create_task(self._answer(key, candidate))
            task.add_done_callback(lambda _: self._pending.pop(key))
        try:
            score, reason = await asyncio.shield(task)
        except asyncio.CancelledError:
            score, reason = None, "closed"
        self._counts["failed" if score is None else "scored"] += 1
        if score is None:
            self._counts[f"failed/{reason}"] += 1
        return score

    async def _answer(self, key: str, candidate: Candidate) -> tuple[float | None, str]:
        stored = self._cached(key)
        if stored is not None:
            self._counts["cached"] += 1
            return snap(stored["score"]), ""
        messages = question(self._rubric, candidate, new_code())
        try:
            reply = await self.client.ask(self._request(messages))
            try:
                raw = read_score(reply.text)
            except AnswerError as error:
                self._counts["repaired"] += 1
                reply = await self.client.ask(self._request(repair(messages, reply.text, error)))
                raw = read_score(reply.text)
        except Fault as fault:
            self._why = fault.whole
            return None, fault.kind
        except AnswerError as error:
            self._why = (
                f"{error.kind}: {error}; the model answered: {said(reply.text, key_from(self.client.key_variable))}"
            )
            return None, error.kind
        return snap(self._keep(key, f"{self.model} {self._rubric.version}", {"score": raw})["score"]), ""

    def _request(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {**CachedModel._request(self, messages), **response_format(self.structured)}
