"""The engine of a simulation: requests share its servers and are written at the same pace."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Generic, TypeVar

from turnwise.planning.pace import Pace

T = TypeVar("T")


class Request(Generic[T]):
    """One reply that is asked for. ``end`` is where the engine's clock will stand when it is written; None: it waits in line."""

    __slots__ = ("cancelled", "end", "owner", "tokens")

    def __init__(self, tokens: float, owner: T) -> None:
        self.tokens, self.owner = tokens, owner
        self.end: float | None = None
        self.cancelled = False


class Decoding(Generic[T]):
    """Requests that are decoded together, spread evenly over the servers; those without a place wait in line.

    All requests under way get tokens at the same rate, so one clock serves them all: it counts the tokens that a request
    would have got since the start. A request of L tokens that gets its place at clock c is written when the clock reaches c + L.

    Args:
        pace: of one server.
        servers: that share the requests.
        places: requests under way at all servers together.
    """

    def __init__(self, pace: Pace, servers: int, places: float) -> None:
        self.pace, self.servers, self.places = pace, servers, places
        self.running = 0
        self.decoded = 0.0  # tokens, of cancelled requests too
        self.thrown = 0.0  # tokens decoded for requests that were cancelled
        self.saved = 0.0  # tokens that these requests would still have taken
        self._clock, self._now = 0.0, 0.0
        self._seconds = 0.0  # of a token at the present number of requests
        self._ends: list[tuple[float, int, Request[T]]] = []
        self._line: deque[Request[T]] = deque()
        self._count = 0

    def put(self, request: Request[T]) -> None:
        """Starts a request, or has it wait for a place."""
        if self.running >= self.places:
            self._line.append(request)
            return
        request.end = self._clock + request.tokens
        self._count += 1
        heappush(self._ends, (request.end, self._count, request))
        self._changed(1)

    def next_end(self, speed: float) -> float:
        """Returns the time at which the next request is written at ``speed`` times the pace; infinity where there is none."""
        while self._ends and self._ends[0][2].cancelled:
            heappop(self._ends)
        if not self._ends:
            return float("inf")
        return self._now + (self._ends[0][0] - self._clock) * self._seconds / speed

    def advance(self, now: float, speed: float) -> None:
        """Moves time on to ``now``, at most to the next end."""
        if self.running:
            self._clock += (now - self._now) / self._seconds * speed
        self._now = now

    def take(self) -> Request[T]:
        """Returns the request that is written now and gives its place to the next in line."""
        end, _, request = heappop(self._ends)
        self._clock = end  # without the rounding of the times in between
        self.decoded += request.tokens
        self._leave()
        return request

    def cancel(self, request: Request[T]) -> None:
        """Ends a request that is not written yet; what was decoded of it counts as thrown away."""
        request.cancelled = True
        if request.end is None:
            self._line.remove(request)
            self.saved += request.tokens
            return
        left = min(max(request.end - self._clock, 0.0), request.tokens)
        self.decoded += request.tokens - left
        self.thrown += request.tokens - left
        self.saved += left
        self._leave()

    def throughput(self) -> float:
        """Returns the tokens a second of all requests under way."""
        return self.running / self._seconds if self.running else 0.0

    def _leave(self) -> None:
        self._changed(-1)
        if self._line and self.running < self.places:
            self.put(self._line.popleft())

    def _changed(self, by: int) -> None:
        self.running += by
        self._seconds = self.pace.seconds(self.running / self.servers)
