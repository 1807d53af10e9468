"""The errors between the engine and its servers."""

from __future__ import annotations

from typing import Literal

from turnwise.errors import InputError

Kind = Literal["unreachable", "timeout", "rate_limited", "server_error", "missing", "garbage", "rejected"]


class Fault(Exception):
    """A request without a usable answer. ``after`` is the number of seconds that the server asks clients to wait."""

    def __init__(self, kind: Kind, detail: str, after: float | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.after = kind, after


class ServerError(InputError):
    """An error that repeating would not solve: no server can do what the run needs. The message says what to do."""
