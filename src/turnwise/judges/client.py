"""Sends questions to an OpenAI-compatible chat endpoint: a vLLM or llama.cpp server, or a hosted model."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from turnwise.endpoints import Connection, Fault, check_url, key_from
from turnwise.json_and_yaml import parse_json
from turnwise.judges.usage import Tally
from turnwise.text import said

logger = logging.getLogger(__name__)

MAX_BODY = 4 * 2**20  # maximum size of an answer in bytes
_SHOWN = 300  # maximum number of characters of an unusable answer that a message shows
_REACH = 5.0  # time limit in seconds for a test whether the server responds
_MOST_TOKENS = 2**24  # a server that reports more tokens for a request counts as a server without token counts
_FINAL = ("rejected", "skipped", "budget")  # faults for which a retry is useless


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's answer."""

    text: str
    finish: str  # the reason why generation stopped (``finish_reason``)


@dataclass(slots=True)
class ChatClient:
    """Sends questions as requests to ``url``/chat/completions. A client must be used in only one event loop.

    A failed request is repeated after a pause. If the server sends a Retry-After header, all questions wait for the
    time in this header.

    Args:
        url: base address of the API, such as ``http://127.0.0.1:8000/v1``.
        key_variable: environment variable with the API key. If the variable is not set, no key is sent.
        concurrency: maximum number of questions in progress.
        attempts: maximum number of requests in one call of :meth:`ask`.
        attempt_limit: time limit of one request in seconds.
        time_limit: time limit of one question in seconds, including all its requests and pauses.
        backoff: pause before the second request in seconds. The pause doubles before each further request and is then
            multiplied by a random factor from 0.5 to 1.
        give_up_after: number of consecutive failed questions after which no question is started for ``cooldown``
            seconds, so that a dead endpoint does not block a run.
        cooldown: see ``give_up_after``.
        price_in: price per million prompt tokens.
        price_out: price per million completion tokens.
        budget: amount of money. If so much is spent, no further question is started. None means no limit.
    """

    url: str
    key_variable: str = "TURNWISE_JUDGE_KEY"
    concurrency: int = 16
    attempts: int = 4
    attempt_limit: float = 60.0
    time_limit: float = 120.0
    backoff: float = 0.5
    give_up_after: int = 16
    cooldown: float = 60.0
    price_in: float = 0.0
    price_out: float = 0.0
    budget: float | None = None
    tally: Tally = field(default_factory=Tally, init=False, repr=False)
    _connection: Connection | None = field(default=None, init=False, repr=False)
    _places: asyncio.Semaphore | None = field(default=None, init=False, repr=False)
    # a separate generator, so that the random pauses do not change the run's seeded random numbers
    _random: random.Random = field(default_factory=random.Random, init=False, repr=False)
    _failed: int = field(default=0, init=False, repr=False)  # number of consecutive failed questions
    _shut_until: float = field(default=0.0, init=False, repr=False)
    _quiet_until: float = field(default=0.0, init=False, repr=False)
    _told: set[str] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        check_url(self.url, self.key_variable)
        for name in ("concurrency", "attempts", "give_up_after"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("time_limit", "attempt_limit"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0 seconds, got {getattr(self, name)}")
        for name in ("backoff", "cooldown", "price_in", "price_out", "budget"):
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.budget and not (self.price_in or self.price_out):
            raise ValueError(
                f"budget={self.budget:g} has no effect while both prices are 0; set price_in (the price of a million input "
                "tokens) and that of output tokens, or no budget"
            )

    @property
    def cost(self) -> float:
        """Returns the amount of money spent so far."""
        return self.tally.cost(self.price_in, self.price_out)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[float]:
        """Waits until a question may start, and yields the question's deadline (in the time of :func:`time.monotonic`).

        Raises:
            Fault: the question may not start, because the endpoint has failed too often, or because the budget is
                spent or cannot be checked.
        """
        if self._places is None:
            self._places = asyncio.Semaphore(self.concurrency)
        async with self._places:
            if time.monotonic() < self._shut_until:
                why = f"no question is sent for a while, because {self._failed} questions in a row have failed"
                raise self._fault(Fault("skipped", why))
            if self.budget is not None and self.cost >= self.budget:
                raise self._fault(Fault("budget", f"the budget of {self.budget:g} is spent"))
            if self.budget is not None and self.tally.unmetered:
                why = "the server reports no token counts, so the cost cannot be compared with the budget"
                raise self._fault(Fault("budget", why))
            yield time.monotonic() + self.time_limit

    async def ask(self, request: Mapping[str, Any], deadline: float) -> Reply:
        """Sends a chat completion request, repeats it after failures, and returns the model's answer.

        Args:
            request: body of the request; it must contain ``model`` and ``messages``.
            deadline: time at which the question must end, from :meth:`place`.

        Raises:
            Fault: a request failed, and repeating it is useless, not allowed (``attempts``) or too late.
        """
        attempt = 0
        while True:
            attempt += 1
            await asyncio.sleep(max(0.0, min(self._quiet_until, deadline) - time.monotonic()))
            try:
                reply = await self._post(request, min(self.attempt_limit, deadline - time.monotonic()))
            except Fault as fault:
                self._fault(fault)
                pause = self.backoff * 2 ** (attempt - 1) * self._random.uniform(0.5, 1.0)
                if fault.after is not None:
                    pause = fault.after
                    self._quiet_until = max(self._quiet_until, time.monotonic() + pause)
                if fault.kind in _FINAL or attempt >= self.attempts or time.monotonic() + pause >= deadline:
                    self._give_up()
                    raise
                await asyncio.sleep(pause)
            else:
                self._failed = 0
                return reply

    async def away(self) -> str | None:
        """Returns None if the server responds in any way, otherwise the reason why it cannot be reached.

        The model is not asked.
        """
        try:
            await self._open().ask("/models", _REACH)
        except Fault as fault:
            return str(fault) if fault.kind in ("unreachable", "timeout") else None
        return None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        self._places = None  # it belongs to the event loop that is about to end

    async def _post(self, request: Mapping[str, Any], limit: float) -> Reply:
        if limit <= 0:
            raise Fault("timeout", f"the time limit of {self.time_limit:g} s is over")
        began = self.tally.began()
        try:
            body = await self._open().ask("/chat/completions", limit, request)
        except Fault as fault:
            if fault.kind == "missing":  # a server without this path refuses every question
                fault.kind = "rejected"
            raise
        finally:
            self.tally.ended(began)
        return self._read(body)

    def _open(self) -> Connection:
        if self._connection is None:
            key = key_from(self.key_variable)
            self._connection = Connection(self.url, key, self.key_variable, self.concurrency, MAX_BODY)
        return self._connection

    def _read(self, body: bytes) -> Reply:
        try:
            answer = parse_json(body)
            choice = answer["choices"][0]
            text = choice["message"].get("content") or ""
            if not isinstance(text, str):
                raise TypeError
        except (ValueError, LookupError, TypeError, AttributeError):
            detail = f"the answer ({len(body)} bytes) is not a chat completion"
            raise Fault("garbage", detail, said=said(body, key_from(self.key_variable), most=_SHOWN)) from None
        self.tally.answered += 1
        self._meter(answer.get("usage"))
        return Reply(text, str(choice.get("finish_reason") or ""))

    def _meter(self, usage: Any) -> None:
        try:
            spent = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        except (TypeError, LookupError, ValueError, OverflowError):
            spent = (-1, -1)
        if min(spent) < 0 or max(spent) > _MOST_TOKENS:
            self.tally.unmetered += 1
            return
        self.tally.prompt_tokens += spent[0]
        self.tally.completion_tokens += spent[1]

    def _give_up(self) -> None:
        self._failed += 1
        if self._failed >= self.give_up_after:
            self._shut_until = time.monotonic() + self.cooldown

    def _fault(self, fault: Fault) -> Fault:
        """Counts a fault and returns it. Logs the first fault of each kind, without the question's text."""
        self.tally.faults[fault.kind] += 1
        if fault.kind not in self._told:
            self._told.add(fault.kind)
            logger.warning(
                "endpoint %s: %s; further faults of the kind %s are counted, not shown", self.url, fault, fault.kind
            )
        return fault
