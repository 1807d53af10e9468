"""Implements a judge that gets its scores from a judging model at an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from turnwise.endpoints import Background, key_from
from turnwise.errors import InputError
from turnwise.judges.cache import Cache, CacheError, key_of
from turnwise.judges.client import ChatClient, ChatFault
from turnwise.judges.judge import Candidate, gather
from turnwise.judges.prompt import AnswerError, Structured, question, read_score, repair, response_format
from turnwise.judges.rubric import Rubric, load_rubric, snap
from turnwise.judges.untrusted_text import new_code
from turnwise.text import said

logger = logging.getLogger(__name__)

_COUNTS = ("asked", "scored", "failed", "cached", "shared", "repaired", "cache_errors")
_OURS = ("model", "messages", "temperature", "max_tokens", "response_format", "stream", "n")


@dataclass(slots=True)
class EndpointJudge:
    """Gets scores from a judging model (AWPO, arXiv:2512.19126, App. B.2) and caches them by the question's content.

    Questions run in a separate thread while the caller continues. If an answer contains no valid score, the model is
    asked once more with a note about the error. If the second answer contains no valid score either, the score is None.
    Failures are counted by their reason and are not cached.

    Args:
        client: client that sends the requests.
        model: name of the judging model at the endpoint. The name is part of the cache key, so different models need
            different names.
        rubric: name of a rubric in ``judges/rubrics``.
        cache: path of the file that caches scores. None means that scores are not cached.
        structured: how the server is asked for JSON; use ``none`` for a server that refuses ``response_format``.
        temperature: sampling temperature of the judging model.
        max_tokens: maximum length of an answer in tokens, including the model's reasoning.
        extra: further keys of the request, such as ``chat_template_kwargs`` or ``seed``.
    """

    client: ChatClient
    model: str
    rubric: str = "tool_use_v1"
    cache: str | None = None
    structured: Structured = "json_schema"
    temperature: float = 0.0
    max_tokens: int = 1024
    extra: Mapping[str, Any] = field(default_factory=dict)
    _rubric: Rubric = field(init=False, repr=False)
    _store: Cache | None = field(default=None, init=False, repr=False)
    _background: Background | None = field(default=None, init=False, repr=False)
    _pending: dict[str, asyncio.Task[tuple[float | None, str]]] = field(default_factory=dict, init=False, repr=False)
    _why: str = field(default="", init=False, repr=False)  # reason of the last question that got no score
    _counts: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model must name the judging model, got an empty name")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if self.max_tokens < 16:
            raise ValueError(f"max_tokens must be at least 16, got {self.max_tokens}")
        if taken := sorted(set(self.extra) & set(_OURS)):
            raise ValueError(f"extra must not set {', '.join(taken)}: the judge sets them itself; leave them out")
        self._rubric = load_rubric(self.rubric)

    def submit(self, candidate: Candidate) -> Future[float | None]:
        """Starts to score a candidate and returns at once. The future's result is the score; None if scoring failed.

        Raises:
            InputError: the cache cannot be opened. This can happen only at the first candidate.
        """
        if self._background is None:
            self._store = Cache(self.cache) if self.cache else None
            self._background = Background("judge")
        return self._background.submit(self._judge(candidate))

    def __call__(self, candidates: Iterable[Candidate]) -> list[float | None]:
        return gather(self, candidates)

    def prove(self, candidate: Candidate) -> str | None:
        """Tests the endpoint with one question. The candidate is not counted as scored, but its cost is counted.

        Returns:
            A warning if the score came from the cache and the server does not respond, otherwise None.

        Raises:
            InputError: the question got no score. The error message contains the server's answer with secrets masked.
        """
        score = self.submit(candidate).result()
        known = self._counts["cached"]
        self._counts.clear()
        if score is None:
            self.close()
            raise InputError(
                f"judge at {self.client.url}: the test question got no score ({self._why}); check judge.client.url, "
                f"judge.model ({self.model}), judge.structured ({self.structured}), judge.max_tokens and the key in "
                f"{self.client.key_variable}, or choose judge=offline"
            )
        assert self._background is not None
        away = self._background.submit(self.client.away()).result() if known else None
        return (
            f"judge at {self.client.url} does not answer ({away}); only replies that are in judge.cache get a score"
            if away
            else None
        )

    def report(self) -> dict[str, float]:
        counts = {name: self._counts[name] for name in _COUNTS}
        reasons = {name: count for name, count in sorted(self._counts.items()) if name.startswith("failed/")}
        return {**counts, **reasons, **self.client.tally.report(), "cost": self.client.cost}

    def close(self) -> None:
        """Cancels running questions, whose futures get the result None. The judge can be used again afterwards."""
        if self._background is not None:
            self._background.close(self.client.close())
            self._background = None
        if self._store is not None:
            self._store.close()
            self._store = None

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
        """Returns a candidate's score and an empty text, or None and the reason why there is no score."""
        stored = self._cached(key)
        if stored is not None:
            self._counts["cached"] += 1
            return snap(stored["score"]), ""
        messages = question(self._rubric, candidate, new_code())
        try:
            async with self.client.place() as deadline:
                reply = await self.client.ask(self._request(messages), deadline)
                try:
                    raw = read_score(reply.text)
                except AnswerError as error:
                    self._counts["repaired"] += 1
                    reply = await self.client.ask(self._request(repair(messages, reply.text, error)), deadline)
                    raw = read_score(reply.text)
        except ChatFault as fault:
            self._why = f"{fault}{f'; the server answered: {fault.said}' if fault.said else ''}"
            return None, fault.kind
        except AnswerError as error:
            self._why = (
                f"{error.kind}: {error}; the model answered: {said(reply.text, key_from(self.client.key_variable))}"
            )
            return None, error.kind
        return snap(self._keep(key, {"score": raw})["score"]), ""

    def _request(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": messages,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **response_format(self.structured),
            **self.extra,
        }

    def _cached(self, key: str) -> dict[str, Any] | None:
        try:
            return self._store.get(key) if self._store is not None else None
        except CacheError as error:
            self._tell(error)
            return None

    def _keep(self, key: str, value: dict[str, Any]) -> dict[str, Any]:
        try:
            return (
                self._store.put(key, f"{self.model} {self._rubric.version}", value)
                if self._store is not None
                else value
            )
        except CacheError as error:
            self._tell(error)
            return value

    def _tell(self, error: CacheError) -> None:
        if not self._counts["cache_errors"]:
            logger.warning("judge.cache: the cache cannot be used now (%s); scores are used but not cached", error)
        self._counts["cache_errors"] += 1
