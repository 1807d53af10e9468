"""What questions to an endpoint came to: every fault by its kind, spend, and rates."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

Fault = Literal[
    "unreachable",  # refused, reset, no such host
    "timeout",  # no whole answer within the limit
    "rate_limited",  # 429
    "server_error",  # 5xx
    "rejected",  # any other status: asking again would not help
    "garbage",  # not a chat completion
    "skipped",  # not asked: the endpoint has failed too often just now
    "budget",  # not asked: the money is spent
]
_KEPT = 4096  # latest latencies, for the percentiles


@dataclass(slots=True)
class Tally:
    """Counted by one thread, read by any."""

    calls: int = 0  # HTTP requests begun
    answered: int = 0
    faults: Counter[str] = field(default_factory=Counter)  # by kind, one a request (or a question that was not asked)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unmetered: int = 0  # answers that did not say their tokens
    busy: float = 0.0  # s during which at least one request was under way
    _latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _open: int = 0
    _since: float = 0.0

    def began(self) -> float:
        """A request starts; answers the time, for :meth:`ended`."""
        now = time.monotonic()
        self.calls += 1
        if not self._open:
            self._since = now
        self._open += 1
        return now

    def ended(self, began: float) -> None:
        now = time.monotonic()
        self._open -= 1
        self._latencies.append(now - began)
        if not self._open:
            self.busy += now - self._since

    def cost(self, price_in: float, price_out: float) -> float:
        """Spend so far, from prices per million tokens."""
        return (self.prompt_tokens * price_in + self.completion_tokens * price_out) / 1e6

    def report(self) -> dict[str, float]:
        """Everything as flat numbers; percentiles and rates are absent until there is something to tell."""
        busy = self.busy + (time.monotonic() - self._since if self._open else 0.0)
        found: dict[str, float] = {
            "calls": self.calls,
            "answered": self.answered,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "unmetered": self.unmetered,
            "busy_seconds": busy,
            **{f"faults/{kind}": count for kind, count in sorted(self.faults.items())},
        }
        if busy > 0:
            found["calls_per_s"] = self.calls / busy
            found["tokens_per_s"] = (self.prompt_tokens + self.completion_tokens) / busy
        if self._latencies:
            ordered = sorted(self._latencies)
            found["latency_p50"] = ordered[(len(ordered) - 1) // 2]
            found["latency_p95"] = ordered[(len(ordered) - 1) * 95 // 100]
        return found
