"""The HTTP client that judges, vLLM and retrievers share: checks of addresses, keys, limits, and repeated requests."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import aiohttp
from pydantic import HttpUrl
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from turnwise.text import plain_body

MAX_PAUSE = 60.0  # longest time in seconds that a client waits when a server sends a Retry-After header
_READ, _SHOWN = 4096, 300  # greatest number of bytes that are read of an error response, and of characters shown
_LONGEST = 30.0  # greatest pause in seconds without a Retry-After header
_LOCAL = ("localhost", "127.0.0.1", "::1")
_JITTER = random.SystemRandom()  # independent of the run's seeds, so that pauses cannot change what a run draws
T = TypeVar("T")


def check_url(url: str, key_variable: str) -> None:
    """Raises a ValueError, whose message hides a password and a query, for a URL that is not the base address of an API
    or that contains a secret.
    """
    try:
        parts = HttpUrl(url) if urlsplit(url).hostname else None  # pydantic would repair http:host and http:///host
    except ValueError:
        parts = None
    if parts is None or "\\" in url or parts.port == 0 or not url.isprintable() or " " in url:
        raise ValueError("url must begin with http:// or https:// and a host, and its port must be from 1 to 65535")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            f"url must not contain a user, password or query; put the key into the environment variable {key_variable}"
        )


def is_local(url: str) -> bool:
    return urlsplit(url).hostname in _LOCAL


def key_from(variable: str) -> str | None:
    return os.environ.get(variable) or None


def retry_after(value: str | None) -> float | None:
    """The seconds that a Retry-After header asks to wait, at most ``MAX_PAUSE``; None if it is not a number."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return min(max(0.0, seconds), MAX_PAUSE) if seconds == seconds else None


Kind = Literal[
    "unreachable",  # the connection was refused, reset or ended before the whole answer, or there is no such host
    "timeout",  # no complete answer arrived within the time limit, or the HTTP status is 408
    "rate_limited",  # HTTP status 429
    "server_error",  # HTTP status 5xx
    "missing",  # HTTP status 404
    "rejected",  # another HTTP status that is not 200, or the server cannot serve the client; a retry is useless
    "garbage",  # the answer is not what was asked for
]


class Fault(Exception):
    """Raised if a request gets no usable answer. ``after`` is the pause in seconds that the server asks for, or None;
    ``said`` is the beginning of the server's answer, with secrets masked.
    """

    def __init__(self, kind: Kind, detail: str, after: float | None = None, said: str = "") -> None:
        super().__init__(detail)
        self.kind, self.after, self.said = kind, after, said

    def __str__(self) -> str:
        return f"{self.kind}: {self.args[0]}"

    @property
    def whole(self) -> str:
        """The fault in words, with the beginning of the server's answer. Logs must not contain the answer."""
        return f"{self}; the server answered: {self.said}" if self.said else str(self)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and after which pauses a failed request is sent again. All times are in seconds."""

    attempts: int = 4  # greatest number, including the first
    backoff: float = 0.5  # pause after the first attempt, doubled after each further one; Retry-After takes precedence
    limit: float = 120.0  # no attempt begins later than this after the first failure
    patient: bool = False  # whether a server that is unreachable or asks to wait is asked until ``limit``, uncounted

    async def send(self, request: Callable[[], Awaitable[T]], failed: Callable[[Fault], object]) -> T:
        """Awaits ``request()`` until it succeeds, and returns its result. ``failed`` is called with each fault; the last
        one is raised when a further attempt is useless (``rejected``) or not allowed.
        """
        counted, first_failure = 0, 0.0

        async def attempt() -> T:
            try:
                return await request()
            except Fault as fault:
                failed(fault)
                raise

        def stop(state: RetryCallState) -> bool:
            nonlocal counted, first_failure
            fault, now = _fault(state), time.monotonic()
            first_failure = first_failure or now
            waits = self.patient and (fault.kind in ("unreachable", "rate_limited") or bool(fault.after))
            counted += not waits
            return counted >= self.attempts or now + state.upcoming_sleep - first_failure > self.limit

        def pause(state: RetryCallState) -> float:
            if after := _fault(state).after:
                return max(after, self.backoff)
            doubled = self.backoff * 2.0 ** min(state.attempt_number - 1, 64)
            return min(_LONGEST, doubled) * _JITTER.uniform(0.5, 1.0)

        useful = retry_if_exception(lambda error: isinstance(error, Fault) and error.kind != "rejected")
        return await AsyncRetrying(retry=useful, stop=stop, wait=pause, reraise=True)(attempt)


def _fault(state: RetryCallState) -> Fault:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, Fault)  # nothing else is tried again
    return error


class Connection:
    """A connection to one HTTP server, which must be used in only one event loop. The paths of requests are appended to
    ``url``. The key is in the environment variable ``key_variable``; if it is unset, none is sent. There are at most
    ``connections`` concurrent requests, and an answer may have ``most`` bytes. Every failure raises a Fault.
    """

    def __init__(self, url: str, key_variable: str, connections: int = 1, most: int = 64 * 2**20) -> None:
        check_url(url, key_variable)
        self.url = url.rstrip("/")
        self._key_variable, self._connections, self._most = key_variable, connections, most
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, path: str, limit: float, body: Any = None) -> bytes:
        """Sends a GET request, or with ``body`` a POST request with ``body`` as JSON. Returns the body of the answer.
        ``limit`` is the time limit in seconds. Cancelling the caller closes the connection, which cancels the request
        at the server.
        """
        if self._session is None:
            key = key_from(self._key_variable)
            self._session = aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {key}"} if key else None,
                connector=aiohttp.TCPConnector(limit=self._connections),
                trust_env=not is_local(self.url),  # the proxies of the environment, but none for this machine
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        try:
            async with self._session.request(
                "GET" if body is None else "POST",
                self.url + path,
                json=body,
                timeout=aiohttp.ClientTimeout(total=limit),
                allow_redirects=False,  # a redirect could send the key to another server
            ) as response:
                if response.status != 200:
                    raise await self._refusal(response)
                answer = bytearray()
                async for piece in response.content.iter_chunked(2**16):
                    answer += piece
                    if len(answer) > self._most:
                        raise Fault("garbage", f"the answer is larger than {self._most} bytes")
                return bytes(answer)
        except TimeoutError:
            raise Fault("timeout", f"no answer within {limit:.3g} s") from None
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
            raise Fault("unreachable", type(error).__name__) from None
        except aiohttp.ClientError as error:  # for example, an invalid status line or header
            raise Fault("garbage", type(error).__name__) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _refusal(self, response: aiohttp.ClientResponse) -> Fault:
        status, named = response.status, f"status {response.status}"
        if status in (401, 403):
            remedy = f"set the environment variable {self._key_variable} to the key that the server requires"
            named += f": the server refuses the key; {remedy}"
        kinds: dict[int, Kind] = {404: "missing", 408: "timeout", 429: "rate_limited"}
        kind = kinds.get(status, "server_error" if status >= 500 else "rejected")
        words = plain_body(await response.content.read(_READ), key_from(self._key_variable), most=_SHOWN)
        return Fault(kind, named, retry_after(response.headers.get("Retry-After")), words)
