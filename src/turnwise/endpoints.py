"""Code that all clients of HTTP services share: checks of addresses, API keys, limits, and a background event loop."""

from __future__ import annotations

import asyncio
import email.utils
import os
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

MAX_PAUSE = 60.0  # longest time in seconds that a client waits when a server sends a Retry-After header
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


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
