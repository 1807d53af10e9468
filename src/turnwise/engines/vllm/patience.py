"""Defines time limits and numbers of attempts for requests to vLLM servers."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from turnwise.endpoints import Fault


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits and numbers of attempts for requests to vLLM servers. All times are in seconds.

    Args:
        concurrency: greatest number of requests that run at one server at the same time.
        attempts: greatest number of attempts per request, including the first attempt. Attempts that fail because the
            server died count too. Answers that ask to wait (429, Retry-After) do not count.
        attempt_limit: time limit for one attempt, including the time in the server's queue.
        backoff: pause before the second attempt. The pause doubles for each further attempt and is shortened at random
            by up to half (jitter). If the server sends a Retry-After header, its value is used instead, but at least
            ``backoff`` and at most ``away_limit``.
        longest_backoff: greatest pause between two attempts, without a Retry-After header.
        health_limit: time limit for a health check. A running local server that fails its health checks for this long
            is restarted. A remote server that fails them for this long is set aside if another server can answer.
        start_limit: greatest time from the start of a server to its first answer.
        away_limit: greatest time for which a remote server may be unreachable if no other server can answer, and for
            which answers to a request may ask to wait.
        restarts: greatest number of consecutive restarts of a local server without an answered request between them.
    """

    concurrency: int = 256
    attempts: int = 6
    attempt_limit: float = 600.0
    backoff: float = 0.5
    longest_backoff: float = 30.0
    health_limit: float = 30.0
    start_limit: float = 900.0
    away_limit: float = 900.0
    restarts: int = 3

    def __post_init__(self) -> None:
        for name in ("concurrency", "attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("attempt_limit", "health_limit", "start_limit", "away_limit"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0 seconds, got {getattr(self, name)}")
        for name in ("backoff", "longest_backoff", "restarts"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    def pause(self, attempt: int, after: float | None) -> float:
        """Returns the pause in seconds after attempt number ``attempt`` (the first attempt is 1).

        ``after`` is the pause that the server asks for, or None. The random jitter does not use the run's seeds, so the
        jitter cannot change samples.
        """
        if after:
            return min(max(after, self.backoff), self.away_limit)
        # a server that asks to wait may be asked thousands of times
        doubled = self.backoff * 2.0 ** min(attempt - 1, 64)
        return min(self.longest_backoff, doubled) * random.SystemRandom().uniform(0.5, 1.0)


class Attempts:
    """Counts the failed attempts of one request.

    ``failed`` is the number of all failed attempts. ``limit`` names the setting that limits attempts that fail as the
    last one did.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience, self.failed, self.limit = patience, 0, ""
        self._counted = 0  # failed attempts without those whose answer asked to wait
        self._waits_since: float | None = None

    def exhausted(self, fault: Fault) -> bool:
        """Counts a failed attempt, and returns whether it was the last one that the limits allow."""
        self.failed += 1
        if fault.asks_to_wait:
            now = time.monotonic()
            self._waits_since = self._waits_since or now
            self.limit = "engine.patience.away_limit"
            return now - self._waits_since >= self.patience.away_limit
        self.limit = "engine.patience.attempts"
        self._counted += 1
        return self._counted >= self.patience.attempts
