"""What clients of HTTP services share: addresses, keys, the size of an answer, how long a server may ask for a pause, and an
event loop in a thread, so that requests are under way while the caller computes."""

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

MAX_PAUSE = 60.0  # s that a server's Retry-After is heeded for
_LOCAL = ("localhost", "127.0.0.1", "::1")
T = TypeVar("T")


def check_url(url: str, key_variable: str) -> None:
    """Refuse what is no base of an API, or holds a secret.

    Raises:
        ValueError: naming ``url`` and the remedy; the message repeats no password and no query.
    """
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("url must hold no spaces and no control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("url must hold a host, and a port from 1 to 65535 or none") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        shown = "an address with a user" if "@" in url else repr(parts._replace(query="").geturl())
        raise ValueError(
            f"url must begin with http:// or https:// and a host, and its port lie from 1 to 65535; got {shown}"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(f"url must hold no user, password or query; put the key into the variable {key_variable}")


def is_local(url: str) -> bool:
    """Whether an address is this machine's own."""
    return urlsplit(url).hostname in _LOCAL


def open_session(url: str, key: str | None, connections: int) -> aiohttp.ClientSession:
    """A session whose requests carry the key. Proxies of the environment are used for other machines only."""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"} if key else None,
        connector=aiohttp.TCPConnector(limit=connections),
        trust_env=not is_local(url),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


class TooLargeError(ValueError):
    """An answer with more bytes than are read."""


async def bounded(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body of an answer.

    Raises:
        TooLargeError: it has more than ``most`` bytes.
        aiohttp.ClientError, TimeoutError, OSError: it does not come whole.
    """
    body = bytearray()
    async for piece in response.content.iter_chunked(2**16):
        body += piece
        if len(body) > most:
            raise TooLargeError(f"an answer above {most} bytes")
    return bytes(body)


def key_from(variable: str) -> str | None:
    """The key in an environment variable; None where it is unset or empty."""
    return os.environ.get(variable) or None


def retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header, in either of its forms, ``MAX_PAUSE`` at most; None where it says nothing usable."""
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
    """Runs coroutines in a daemon thread: a process that ends does not wait for it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``work``, and return at once."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self, last: Coroutine[Any, Any, Any]) -> None:
        """Cancel what is running and let it end, run ``last``, and stop the thread."""
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
