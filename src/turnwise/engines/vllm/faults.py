"""What goes wrong between the engine and its servers."""

from __future__ import annotations

from typing import Literal

from turnwise.errors import InputError

Kind = Literal["unreachable", "timeout", "rate_limited", "server_error", "missing", "garbage", "rejected"]


class Fault(Exception):
    """A request without a usable answer. ``after``: seconds that the server asked to be left alone."""

    def __init__(self, kind: Kind, detail: str, after: float | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.after = kind, after


class ServerError(InputError):
    """No server can do what the run needs, and trying again would not help. The message says what to do."""
