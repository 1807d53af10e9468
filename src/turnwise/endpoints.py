"""Code that all clients of HTTP services share: checks of addresses, API keys, limits, and a background event loop."""

from __future__ import annotations

import asyncio
import email.utils
import os
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import aiohttp

from turnwise.text import said

MAX_PAUSE = 60.0  # longest time in seconds that a client waits when a server sends a Retry-After header
_READ, _SHOWN = 4096, 300  # greatest number of bytes that are read of an error response, and of characters shown
_LOCAL = ("localhost", "127.0.0.1", "::1")
T = TypeVar("T")


def check_url(url: str, key_variable: str) -> None:
    """Refuses a URL that is not the base address of an API, or that contains a secret.

    Raises:
        ValueError: the URL is refused. The message says how to correct the URL, and hides its password and query.
    """
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("url must not contain spaces or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("url must contain a host; a port is optional and must be from 1 to 65535") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        shown = "an address with a user" if "@" in url else repr(parts._replace(query="").geturl())
        raise ValueError(
            f"url must begin with http:// or https:// and a host, and its port must be from 1 to 65535; got {shown}"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            f"url must not contain a user, password or query; put the key into the environment variable {key_variable}"
        )


def is_local(url: str) -> bool:
    return urlsplit(url).hostname in _LOCAL


def open_session(url: str, key: str | None, connections: int) -> aiohttp.ClientSession:
    """Returns an HTTP session whose requests carry the API key ``key``. The session uses the proxies that environment
    variables name, but no proxy for a URL on this machine.
    """
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"} if key else None,
        connector=aiohttp.TCPConnector(limit=connections),
        trust_env=not is_local(url),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


class TooLargeError(ValueError):
    """Raised if the answer of a server has more bytes than the client accepts."""


async def bounded(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Returns the body of a server's answer.

    Raises:
        TooLargeError: the body has more than ``most`` bytes.
        aiohttp.ClientError, TimeoutError, OSError: the body does not arrive completely.
    """
    body = bytearray()
    async for piece in response.content.iter_chunked(2**16):
        body += piece
        if len(body) > most:
            raise TooLargeError(f"the answer is larger than {most} bytes")
    return bytes(body)


def key_from(variable: str) -> str | None:
    """Returns the API key in an environment variable, or None if the variable is unset or empty."""
    return os.environ.get(variable) or None


def retry_after(value: str | None) -> float | None:
    """Returns how many seconds a Retry-After header (a number of seconds or a date) asks to wait, at most
    ``MAX_PAUSE``, or None if the header is not usable.
    """
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
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
    "skipped",  # the request was not sent, because the server has just failed too often
    "budget",  # the request was not sent, because the budget is spent or the cost is unknown
]


class Fault(Exception):
    """Raised if a request gets no usable answer.

    ``after`` is the pause in seconds that the server asks for, or None. ``said`` is the beginning of the server's
    answer, with secrets masked.
    """

    def __init__(self, kind: Kind, detail: str, after: float | None = None, said: str = "") -> None:
        super().__init__(detail)
        self.kind, self.after, self.said = kind, after, said

    def __str__(self) -> str:
        return f"{self.kind}: {self.args[0]}"

    @property
    def asks_to_wait(self) -> bool:
        """Whether the server works, but asks clients to send the request again later."""
        return self.kind == "rate_limited" or bool(self.after)

    @property
    def whole(self) -> str:
        """Returns the fault in words, with the beginning of the server's answer. Logs must not contain the answer."""
        return f"{self}; the server answered: {self.said}" if self.said else str(self)


class Connection:
    """A connection to one HTTP server, which must be used in only one event loop. Every failure raises a Fault.

    Args:
        url: base address, to which the paths of requests are appended, such as ``http://127.0.0.1:8000``.
        key: the access token or API key; None: no key is sent.
        key_variable: name of the environment variable in which users set the key; error messages name it.
        connections: greatest number of concurrent requests.
        most: greatest size of an answer in bytes.
    """

    def __init__(self, url: str, key: str | None, key_variable: str, connections: int, most: int = 64 * 2**20) -> None:
        check_url(url, key_variable)
        self.url = url.rstrip("/")
        self._key, self._key_variable, self._connections, self._most = key, key_variable, connections, most
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, path: str, limit: float, body: Any = None) -> bytes:
        """Sends a GET request, or with ``body`` a POST request with ``body`` as JSON. Returns the body of the answer.

        ``limit`` is the time limit in seconds. Cancelling the caller closes the connection, which cancels the request
        at the server.

        Raises:
            Fault: the request failed, or the answer's status is not 200.
        """
        if self._session is None:
            self._session = open_session(self.url, self._key, self._connections)
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
                return await bounded(response, self._most)
        except TimeoutError:
            raise Fault("timeout", f"no answer within {limit:.3g} s") from None
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
            raise Fault("unreachable", type(error).__name__) from None
        except TooLargeError as error:
            raise Fault("garbage", str(error)) from None
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
        words = said(await response.content.read(_READ), self._key, most=_SHOWN)
        return Fault(kind, named, retry_after(response.headers.get("Retry-After")), words)


class Background:
    """An event loop that runs coroutines in a daemon thread. The process does not wait for this thread when it ends."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts the coroutine ``work`` in the background thread, and returns its future without waiting."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, last: Coroutine[Any, Any, Any]) -> None:
        """Cancels the running coroutines, waits for their end, runs the coroutine ``last`` and stops the thread."""
        self.submit(_cancel_others()).result()
        self.submit(last).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def run_all(work: Sequence[Any]) -> None:
    """Runs all coroutines concurrently. When all have ended, the first error in the order of ``work`` is raised."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
