"""Defines the errors of requests to vLLM servers."""

from __future__ import annotations

from typing import Literal

from turnwise.errors import InputError

Kind = Literal["unreachable", "timeout", "rate_limited", "server_error", "missing", "garbage", "rejected"]


class Fault(Exception):
    """Raised when a request gets no usable answer.

    ``after`` is the number of seconds that the server asks clients to wait before the next attempt, or None.
    """

    def __init__(self, kind: Kind, detail: str, after: float | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.after = kind, after


class ServerError(InputError):
    """Raised when a server does not meet the run's needs and another attempt would not help."""
