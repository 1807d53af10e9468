"""Sends HTTP requests to one vLLM server. Every failure is raised as :class:`Fault`."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from turnwise.endpoints import TooLargeError, bounded, check_url, open_session, retry_after
from turnwise.engines.vllm.faults import Fault
from turnwise.text import said

MAX_BODY = 64 * 2**20  # greatest size of an answer in bytes
_TOLD = 300  # greatest number of characters of a server's error message that our messages quote


class Connection:
    """A connection to one server.

    Args:
        url: root URL of the server, such as ``http://127.0.0.1:8000``.
        key: the server's access token; None: no token.
        key_variable: name of the environment variable in which users set the token; error messages name it.
        connections: greatest number of concurrent requests, without health checks.
    """

    def __init__(self, url: str, key: str | None, key_variable: str, connections: int) -> None:
        check_url(url, key_variable)
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key, self._key_variable, self._connections = key, key_variable, connections
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, path: str, limit: float, body: Any = None) -> bytes:
        """Sends a GET request, or with ``body`` a POST request with ``body`` as JSON, and returns the body of the
        answer.

        ``path`` is the path of the URL, such as ``/v1/completions``. ``limit`` is the time limit in seconds. Cancelling
        the caller closes the connection, which cancels the request at the server.

        Raises:
            Fault: the request failed, or the answer's status is not 200.
        """
        if self._session is None:
            self._session = open_session(self.url, self._key, self._connections + 8)  # 8 more for health checks
        try:
            async with self._session.request(
                "GET" if body is None else "POST",
                self.url + path,
                json=body,
                timeout=aiohttp.ClientTimeout(total=limit),
                allow_redirects=False,  # a redirect would send the key to another server
            ) as response:
                answer = await bounded(response, MAX_BODY)
                if response.status != 200:
                    raise self._refusal(response, answer)
                return answer
        except TimeoutError:
            raise Fault("timeout", f"no answer within {limit:.3g} s") from None
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError) as error:
            raise Fault("unreachable", type(error).__name__) from None
        except TooLargeError as error:
            raise Fault("garbage", str(error)) from None
        except aiohttp.ClientError as error:  # for example, an invalid status line or header
            raise Fault("garbage", type(error).__name__) from None

    async def get_json(self, path: str, limit: float) -> Any:
        """Sends a GET request (see :meth:`ask`) and returns the answer, parsed as JSON."""
        return parsed(await self.ask(path, limit), path)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _refusal(self, response: aiohttp.ClientResponse, answer: bytes) -> Fault:
        status, after = response.status, retry_after(response.headers.get("Retry-After"))
        if status == 429:
            return Fault("rate_limited", "status 429", after)
        if status == 408:
            return Fault("timeout", "status 408", after)
        if status >= 500:
            return Fault("server_error", f"status {status}", after)
        if status in (401, 403):
            remedy = f"set the environment variable {self._key_variable} to the token that the server requires"
            return Fault("rejected", f"status {status}: the server refuses the access token; {remedy}")
        told = said(answer, self._key, most=_TOLD)
        return Fault("missing" if status == 404 else "rejected", f"status {status}" + (f", {told}" if told else ""))


def parsed(answer: bytes, path: str) -> Any:
    """Parses an answer as JSON. ``path`` is the request's path, which the error message names.

    Raises:
        Fault: the answer is not JSON; the kind is ``garbage``.
    """
    try:
        return json.loads(answer)
    except (ValueError, RecursionError):
        raise Fault("garbage", f"the answer to {path} is not JSON ({len(answer)} bytes)") from None
