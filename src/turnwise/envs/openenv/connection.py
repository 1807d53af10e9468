"""Opens sessions on an OpenEnv server, with the client of the package openenv."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from turnwise.envs import event_loop
from turnwise.envs.environment import EnvironmentFault
from turnwise.errors import InputError

INSTALL = "`make openenv` installs it (pip install --no-deps -r requirements-openenv.txt after requirements-mcp.txt)"
_LARGEST = 4  # maximum size of an answer in mebibytes
_WAIT = 5.0  # time in seconds during which a session is requested again if the server has no free session
_AGAIN = 0.1
_REFUSED = "(code: VALIDATION_ERROR)"
_FULL = "(code: CAPACITY_REACHED)"


class RefusedActionError(ValueError):
    """The OpenEnv server refused an action that does not fit the schema of its actions."""


def check_package() -> None:
    """Raises ``InputError`` if the package openenv is not installed."""
    if find_spec("openenv") is None:
        raise InputError(f"env=openenv needs the package openenv, which is not installed here; {INSTALL}")


def headers(variable: str | None) -> dict[str, str] | None:
    """Returns HTTP headers with the token in the environment variable ``variable``; None if ``variable`` is None.

    Raises:
        InputError: the variable is not set.
    """
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise InputError(
            f"env.key_variable: the environment variable {variable} is not set; set it to the server's token"
        )
    return {"Authorization": f"Bearer {os.environ[variable]}"}


def action_schema(url: str, seconds: float, variable: str | None) -> dict[str, Any]:
    """Returns the JSON schema of the server's actions, without openenv's own field ``metadata``.

    Raises:
        InputError: the server cannot be reached, or does not provide the schema.
    """
    parts = urlsplit(url.rstrip("/"))
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    address = urlunsplit((scheme, parts.netloc, f"{parts.path}/schema", "", ""))

    async def asked() -> Any:
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers(variable)) as session,
            session.get(address, allow_redirects=False) as answer,
        ):
            answer.raise_for_status()
            return json.loads(await answer.content.read(_LARGEST << 20))

    try:
        schema = dict(event_loop.run(asked(), seconds + 1, address)["action"])
    except (EnvironmentFault, aiohttp.ClientError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"env.url: the server does not provide the schema of its actions at {address} ({type(error).__name__}: "
            f"{error}); start the server, or correct env.url"
        ) from None
    properties = {name: about for name, about in (schema.get("properties") or {}).items() if name != "metadata"}
    return {**schema, "type": "object", "properties": properties}


class Connection:
    """One session on an OpenEnv server. The constructor opens the session and resets the server's environment.

    Args:
        url: the server's address, beginning with http or ws.
        reset: arguments of the reset.
        seconds: time limit of each answer.
        variable: name of the environment variable that holds the token; None means that no token is sent.

    Raises:
        EnvironmentFault: the server cannot be reached, is full, or fails.
    """

    def __init__(self, url: str, reset: Mapping[str, Any], seconds: float, variable: str | None) -> None:
        self.url, self.seconds = url, seconds
        self._owner = os.getpid()
        self._client, self.first = self._run(_opened(url, reset, seconds, headers(variable)), seconds + _WAIT + 1)
        self._socket = getattr(self._client, "_ws", None)

    def step(self, action: Mapping[str, Any]) -> Any:
        """Sends an action to the server and returns the result as an object of the package openenv.

        Raises:
            RefusedActionError: the action does not fit the server's schema.
            EnvironmentFault: the server failed, or the session was lost.
        """
        self._check_session()
        result = self._run(_stepped(self._client, dict(action)), self.seconds + 1)
        self._check_session()
        return result

    def close(self) -> None:
        """Ends the session on the server. In a forked process this method does nothing."""
        if os.getpid() == self._owner:
            event_loop.start(_closed(self._client))

    def _check_session(self) -> None:
        """Raises ``EnvironmentFault`` if the client has opened a new session, which was never reset."""
        if getattr(self._client, "_ws", None) is not self._socket:
            raise EnvironmentFault(f"{self.url}: the connection to the server was lost, and the episode with it")

    def _run(self, coroutine: Any, seconds: float) -> Any:
        try:
            return event_loop.run(coroutine, seconds, self.url)
        except (EnvironmentFault, InputError, RefusedActionError):
            raise
        except Exception as error:
            more = ""
            if _FULL in str(error):
                more = (
                    "; the server must allow one session for each concurrent rollout: raise the server's "
                    "max_concurrent_envs, or lower env.together"
                )
            raise EnvironmentFault(f"{self.url}: {type(error).__name__}: {error}{more}") from error


async def _opened(url: str, reset: Mapping[str, Any], seconds: float, given: dict[str, str] | None) -> tuple[Any, Any]:
    from openenv.core.generic_client import GenericEnvClient

    deadline = asyncio.get_running_loop().time() + _WAIT
    while True:
        client = GenericEnvClient(
            base_url=url,
            connect_timeout_s=seconds,
            message_timeout_s=seconds,
            max_message_size_mb=_LARGEST,
            mode="simulation",
            headers=given,
        )
        try:
            await client.connect()
            return client, await client.reset(**reset)
        except RuntimeError as error:
            await _closed(client)
            if _FULL not in str(error) or asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(_AGAIN)  # the server frees sessions a moment after they are closed
        except BaseException:
            await _closed(client)
            raise


async def _stepped(client: Any, action: dict[str, Any]) -> Any:
    try:
        return await client.step(action)
    except RuntimeError as error:
        if _REFUSED in str(error):
            raise RefusedActionError("the action does not fit the environment's schema") from None
        raise


async def _closed(client: Any) -> None:
    with suppress(Exception):
        await client.close()
