"""Counts the requests to an endpoint, their tokens and their faults. Computes cost, latencies and rates."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field

_KEPT = 4096  # number of the latest latencies that are kept to compute percentiles


@dataclass(slots=True)
class Tally:
    """The counts of the requests to one endpoint. Only one thread may change a tally, but any thread may read it."""

    calls: int = 0  # HTTP requests that were begun
    answered: int = 0  # HTTP requests that were answered with a chat completion
    # number of faults by kind; a fault is a failed request or a question that was not sent
    faults: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unmetered: int = 0  # answers without a token count, or with an impossible one
    busy: float = 0.0  # seconds during which at least one request was running
    _latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _open: int = 0
    _since: float = 0.0

    def began(self) -> float:
        """Records the start of a request and returns its time, which must be passed to :meth:`ended`."""
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
        """Returns the cost of all requests so far; the prices are per million tokens."""
        return (self.prompt_tokens * price_in + self.completion_tokens * price_out) / 1e6

    def report(self) -> dict[str, float]:
        """Returns all counts by name, and percentiles and rates if at least one request has been made."""
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
