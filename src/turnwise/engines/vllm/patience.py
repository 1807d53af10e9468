"""Time limits and numbers of attempts for requests to servers."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits and numbers of attempts.

    Args:
        concurrency: greatest number of requests that run at one server.
        attempts: greatest number of attempts of a request, including the first. An attempt that failed because the
            server died counts too.
        attempt_limit: seconds for one attempt, including the time that the request waits at the server.
        backoff: seconds before the second attempt, doubled for each further attempt, with jitter. A Retry-After header
            of the server takes precedence.
        longest_backoff: greatest backoff in seconds.
        health_limit: seconds for a health check, and seconds after which a running local server that fails it is
            killed.
        start_limit: seconds until a started server must answer.
        away_limit: seconds for which a remote server may be unreachable.
        restarts: greatest number of restarts of a local server in a row without an answer in between.
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
        """Returns the seconds to wait after attempt number ``attempt`` (from 1).

        The jitter does not use the run's seeds, so it never changes what is sampled.
        """
        if after is not None:
            return min(after, self.away_limit)
        return min(self.longest_backoff, self.backoff * 2 ** (attempt - 1)) * random.SystemRandom().uniform(0.5, 1.0)
