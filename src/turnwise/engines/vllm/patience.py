"""How long servers are waited for, and how often they are asked."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Args:
    concurrency: requests under way at one server.
    attempts: of a request, the first included; an attempt ended by a dead server counts.
    attempt_limit: s of one attempt, waiting at the server included.
    backoff: s before the second attempt, then twice as long each time, with jitter; Retry-After comes first.
    longest_backoff: s.
    health_limit: s of a health check, and s that a living local server may fail it before it is killed.
    start_limit: s until a server that was started answers.
    away_limit: s that a remote server may be away.
    restarts: of a local server in a row, without an answer between them.
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
        """Seconds to wait after attempt number ``attempt``, from 1. Draws of a run are seeded apart from this jitter."""
        if after is not None:
            return min(after, self.away_limit)
        return min(self.longest_backoff, self.backoff * 2 ** (attempt - 1)) * random.SystemRandom().uniform(0.5, 1.0)
