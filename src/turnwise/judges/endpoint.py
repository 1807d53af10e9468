"""The judge that is a language model at an OpenAI-compatible endpoint, and the client and cache that it shares with tau2's
simulated user.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from annotated_types import Ge, Gt, MinLen
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from turnwise.daemon_threads import EventLoop
from turnwise.errors import InputError
from turnwise.files import parse_json
from turnwise.http_client import Connection, Fault, Retries, check_url, key_from
from turnwise.judges.judge import (
    RESPONSE_FORMAT,
    AnswerError,
    Candidate,
    Rubric,
    judge_question,
    load_rubric,
    new_code,
    read_score,
    snap,
)
from turnwise.text import plain_body

# -- a model whose answers are kept ------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

MAX_BODY = 4 * 2**20  # maximum size of an answer in bytes
_SHOWN = 300  # maximum number of characters of an unusable answer that a message shows
_BUSY = 30.0  # maximum time in seconds that a write to the cache waits for other processes
_TABLE = """CREATE TABLE IF NOT EXISTS answers
    (key TEXT PRIMARY KEY, about TEXT NOT NULL, value TEXT NOT NULL, written REAL NOT NULL) WITHOUT ROWID"""
_OPENING = threading.Lock()  # no field of the model, because an object with a lock could not be pickled


def key_of(question: Mapping[str, Any]) -> str:
    text = json.dumps(question, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class JudgeCache:
    """Answers (JSON objects) by the keys of questions, in an SQLite file that several processes can share; without a
    path, nothing is kept.

    Each entry is one transaction in write-ahead mode, so a killed process leaves no partial entry; this mode needs a
    local disk. An InputError if the file cannot be opened, or belongs to another program. If it cannot be read or
    written later, the answers are used without being kept.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._told = False
        if path is None:
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, _BUSY, isolation_level=None, check_same_thread=False)
            # SQLite refuses these statements at once while another process creates the file.
            locked = retry_if_exception_type(sqlite3.OperationalError)
            Retrying(retry=locked, stop=stop_after_delay(_BUSY), wait=wait_fixed(0.01), reraise=True)(self._begin)
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"{path}: cannot be used as a cache ({error}); remove the file or name another one"
            ) from error

    def _begin(self) -> None:
        assert self._connection is not None
        if self._connection.execute("SELECT 1 FROM sqlite_master WHERE tbl_name != 'answers'").fetchone():
            raise sqlite3.DatabaseError("the file belongs to another program")
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _TABLE):
            self._connection.execute(statement)

    def get(self, key: str) -> dict[str, Any] | None:
        row = self._row("SELECT value FROM answers WHERE key = ?", key)
        return json.loads(row[0]) if row else None

    def put(self, key: str, about: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Stores an answer unless the key already has one, and returns the stored answer. So processes that ask a
        question at the same time all use the first answer. ``about`` is for people who inspect the file.
        """
        text = json.dumps(value, allow_nan=False)
        self._row("INSERT INTO answers VALUES (?, ?, ?, ?) ON CONFLICT (key) DO NOTHING", key, about, text, time.time())
        return self.get(key) or dict(value)

    def _row(self, statement: str, *values: str | float) -> Any:
        try:
            with self._lock:
                return self._connection and self._connection.execute(statement, values).fetchone()
        except sqlite3.Error as error:
            if not self._told:  # once, not at each question
                logger.warning("the cache cannot be used now (%s); answers are used but not cached", error)
            self._told = True
            return None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()


class Reply(NamedTuple):
    text: str
    finish: str  # the reason why the generation stopped (``finish_reason``)


@dataclass(slots=True)
class ChatClient:
    """Sends questions to ``url``/chat/completions. A client must be used in only one event loop."""

    url: str  # base address of the API, such as http://127.0.0.1:8000/v1
    key_variable: str = "TURNWISE_JUDGE_KEY"  # environment variable with the API key; if it is not set, none is sent
    concurrency: Annotated[int, Ge(1)] = 16  # maximum number of questions in progress
    attempts: Annotated[int, Ge(1)] = 4  # maximum number of requests for one question
    attempt_limit: Annotated[float, Gt(0)] = 60.0  # of one request, in seconds
    time_limit: Annotated[float, Gt(0)] = 120.0  # no request begins later after the question's first failure
    backoff: Annotated[float, Ge(0)] = 0.5  # seconds before the second request, doubled before each further one
    tally: Counter[str] = field(default_factory=Counter, init=False, repr=False)
    _retries: Retries = field(init=False, repr=False)
    _connection: Connection | None = field(default=None, init=False, repr=False)
    _places: asyncio.Semaphore | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_url(self.url, self.key_variable)
        self._retries = Retries(self.attempts, self.backoff, limit=self.time_limit)

    async def ask(self, request: Mapping[str, Any]) -> Reply:
        """Sends a chat completion request and repeats it after failures. Raises the last Fault."""

        async def attempt() -> Reply:
            self.tally["calls"] += 1
            if self._connection is None:
                self._connection = Connection(self.url, self.key_variable, self.concurrency, MAX_BODY)
            try:
                answer = await self._connection.ask("/chat/completions", self.attempt_limit, request)
            except Fault as fault:
                if fault.kind == "missing":  # a server without this path refuses every question
                    fault.kind = "rejected"
                raise
            return self._read(answer)

        self._places = self._places or asyncio.Semaphore(self.concurrency)
        async with self._places:
            return await self._retries.send(attempt, self._failed)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        self._connection = self._places = None  # they belong to the event loop that is about to end

    def _read(self, body: bytes) -> Reply:
        try:
            answer = parse_json(body)
            choice = answer["choices"][0]
            text = choice["message"].get("content") or ""
            if not isinstance(text, str):
                raise TypeError
        except (ValueError, LookupError, TypeError, AttributeError):
            detail = f"the answer ({len(body)} bytes) is not a chat completion"
            raise Fault("garbage", detail, said=plain_body(body, key_from(self.key_variable), most=_SHOWN)) from None
        self.tally["answered"] += 1
        usage = answer.get("usage")
        for name in ("prompt_tokens", "completion_tokens"):
            tokens = usage.get(name) if isinstance(usage, dict) else None
            self.tally[name] += tokens if type(tokens) is int and tokens > 0 else 0
        return Reply(text, str(choice.get("finish_reason") or ""))

    def _failed(self, fault: Fault) -> None:
        if not self.tally[f"faults/{fault.kind}"]:
            logger.warning("%s: %s; further faults of this kind are counted, not shown", self.url, fault)
        self.tally[f"faults/{fault.kind}"] += 1


@dataclass(slots=True)
class CachedModel:
    """A model at a chat endpoint, whose answers are cached by the content of the question."""

    what: ClassVar[str]  # what the model is used for, in messages and in the name of the thread
    ours: ClassVar[tuple[str, ...]] = ("model", "messages", "temperature", "max_tokens", "stream", "n")
    client: ChatClient
    model: Annotated[str, MinLen(1)]  # part of the cache key, so different models need different names
    cache: str | None = field(default=None, kw_only=True)  # path of a file
    temperature: Annotated[float, Ge(0)] = field(default=0.0, kw_only=True)
    max_tokens: Annotated[int, Ge(16)] = field(default=1024, kw_only=True)  # with the model's reasoning
    # further keys of the request, such as chat_template_kwargs or seed
    extra: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    _store: JudgeCache | None = field(default=None, init=False, repr=False)  # None until the model is opened
    _loop: EventLoop | None = field(default=None, init=False, repr=False)
    _counts: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def __post_init__(self) -> None:
        if taken := sorted(set(self.extra) & set(self.ours)):
            raise ValueError(f"extra must not set {', '.join(taken)}: every request sets them anyway; leave them out")

    def open(self) -> EventLoop:
        """Opens the cache and returns the event loop that sends requests. Several threads may call this method."""
        with _OPENING:
            if self._loop is None:
                self._store = JudgeCache(self.cache)
                self._loop = EventLoop(self.what)
            return self._loop

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close(self.client.close())
            self._loop = None
        if self._store is not None:
            self._store.close()
            self._store = None

    def _request(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        own = {"model": self.model, "messages": messages}
        return {**own, "temperature": self.temperature, "max_tokens": self.max_tokens, **self.extra}


# -- the judge ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class EndpointJudge(CachedModel):
    """Gets scores from a judging model (AWPO, arXiv:2512.19126, App. B.2) and caches them by the question's content.

    Questions run in a separate thread while the caller continues. If an answer contains no valid score, the score is
    None. Failures are counted by their reason and are not cached.
    """

    what: ClassVar[str] = "judge"
    rubric: str = "tool_use_v1"  # the name of one in judges/rubrics
    _rubric: Rubric = field(init=False, repr=False)
    _why: str = field(default="", init=False, repr=False)  # reason of the last question that got no score

    def __post_init__(self) -> None:
        CachedModel.__post_init__(self)  # a dataclass with slots cannot use super()
        self._rubric = load_rubric(self.rubric)

    def submit(self, candidate: Candidate) -> Future[float | None]:
        return self.open().start(self._judge(candidate))

    def prove(self, candidate: Candidate) -> None:
        """Tests the endpoint with one question, which is not counted as a candidate. An InputError with the server's
        answer, in which secrets are masked, if it gets no score.
        """
        score = self.submit(candidate).result()
        self._counts.clear()
        if score is None:
            self.close()
            raise InputError(
                f"judge at {self.client.url}: the test question got no score ({self._why}); check judge.client.url, "
                f"judge.model and the key in {self.client.key_variable}, for a slow or thinking judge "
                "judge.max_tokens and judge.client.attempt_limit, or choose judge=offline"
            )

    def report(self) -> dict[str, float]:
        names = ("asked", "scored", "failed", "cached", "calls", "answered", "prompt_tokens", "completion_tokens")
        return {**dict.fromkeys(names, 0), **dict(sorted(self._counts.items())), **self.client.tally}

    async def _judge(self, candidate: Candidate) -> float | None:
        self._counts["asked"] += 1
        try:
            score, reason = await self._answer(candidate)
        except asyncio.CancelledError:
            score, reason = None, "closed"
        self._counts["failed" if score is None else "scored"] += 1
        if score is None:
            self._counts[f"failed/{reason}"] += 1
        return score

    async def _answer(self, candidate: Candidate) -> tuple[float | None, str]:
        assert self._store is not None  # the caller has opened the model
        key = key_of(self._request(judge_question(self._rubric, candidate, code="")))
        stored = self._store.get(key)
        if stored is not None:
            self._counts["cached"] += 1
            return snap(stored["score"]), ""
        messages = judge_question(self._rubric, candidate, new_code())
        try:
            reply = await self.client.ask(self._request(messages))
            raw = read_score(reply.text)
        except Fault as fault:
            self._why = fault.whole
            return None, fault.kind
        except AnswerError as error:
            self._why = f"{error.kind}: {error}; the model answered: {plain_body(reply.text, key_from(self.client.key_variable))}"
            return None, error.kind
        return snap(self._store.put(key, f"{self.model} {self._rubric.version}", {"score": raw})["score"]), ""

    def _request(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return {"response_format": RESPONSE_FORMAT, **CachedModel._request(self, messages)}
