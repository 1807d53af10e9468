"""Simulates the sampling engine, and describes the machines of a simulation."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

from turnwise.planning.decoding_pace import Pace

T = TypeVar("T")


class Request(Generic[T]):
    """A request for one reply. ``end`` is the value of the engine's clock at which the reply is complete, or None while
    the request waits in the queue.
    """

    __slots__ = ("cancelled", "end", "owner", "tokens")

    def __init__(self, tokens: float, owner: T) -> None:
        self.tokens, self.owner = tokens, owner
        self.end: float | None = None
        self.cancelled = False


class Decoding(Generic[T]):
    """Simulates an engine that decodes requests together and spreads them evenly over its servers.

    All requests in progress get tokens at the same rate, so that one clock is enough for all of them. The clock counts
    the tokens that a request would have received if it had been in progress since the start of the simulation. A
    request of L tokens that begins at clock value c is complete when the clock reaches c + L.

    If ``places`` requests are in progress on all servers together, further requests wait in a queue. ``pace`` is the
    decoding speed of one server.
    """

    def __init__(self, pace: Pace, servers: int, places: float) -> None:
        self.pace, self.servers, self.places = pace, servers, places
        self.running = 0
        self.decoded = 0.0  # tokens decoded so far, including those of cancelled requests
        self.thrown = 0.0  # tokens decoded for requests that were cancelled later
        self.saved = 0.0  # tokens that cancelled requests would still have needed
        self._clock, self._now = 0.0, 0.0
        self._seconds = 0.0  # seconds for one token of a request, at the current number of requests
        self._ends: list[tuple[float, int, Request[T]]] = []
        self._line: deque[Request[T]] = deque()
        self._count = 0

    def put(self, request: Request[T]) -> None:
        """Starts a request, or queues the request if ``places`` requests are in progress."""
        if self.running >= self.places:
            self._line.append(request)
            return
        request.end = self._clock + request.tokens
        self._count += 1
        heappush(self._ends, (request.end, self._count, request))
        self._changed(1)

    def next_end(self, speed: float) -> float:
        """Returns the time in seconds at which the next request completes, or infinity if no request is in progress.
        ``speed`` is a factor on the pace of the servers.
        """
        while self._ends and self._ends[0][2].cancelled:
            heappop(self._ends)
        if not self._ends:
            return float("inf")
        return self._now + (self._ends[0][0] - self._clock) * self._seconds / speed

    def advance(self, now: float, speed: float) -> None:
        """Advances the simulated time to ``now``. No request may complete before ``now``."""
        if self.running:
            self._clock += (now - self._now) / self._seconds * speed
        self._now = now

    def take(self) -> Request[T]:
        """Returns the request that completes now, and starts the next request of the queue."""
        end, _, request = heappop(self._ends)
        self._clock = end  # the exact value, without the rounding errors of the time steps
        self.decoded += request.tokens
        self._leave()
        return request

    def cancel(self, request: Request[T]) -> None:
        """Cancels an unfinished request, and adds its tokens that were already decoded to ``thrown``."""
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
        """Returns the total tokens per second of all requests in progress."""
        return self.running / self._seconds if self.running else 0.0

    def _leave(self) -> None:
        self._changed(-1)
        if self._line and self.running < self.places:
            self.put(self._line.popleft())

    def _changed(self, by: int) -> None:
        self.running += by
        self._seconds = self.pace.seconds(self.running / self.servers)


@dataclass(frozen=True, slots=True)
class Site:
    """The machines in a simulation: servers that sample, and a trainer.

    Attributes:
        pace: decoding speed of one server.
        places: largest number of requests in progress on all servers together.
        sampling_gpus, training_gpus: number of GPUs of all servers together, and of the trainer.
        update: seconds of one update.
        sync: seconds to load new weights into the engine before a collection starts.
        shared: whether servers and trainer use the same GPUs. While both work, each of them runs at half of its speed.
    """

    pace: Pace
    servers: int
    places: int
    sampling_gpus: int
    training_gpus: int
    update: float
    sync: float
    shared: bool = False

    @property
    def gpus(self) -> int:
        return self.sampling_gpus if self.shared else self.sampling_gpus + self.training_gpus

    def full(self, rollouts: float) -> float:
        """Returns the largest tokens per second of all servers together with at most ``rollouts`` requests in progress.

        Between two neighbours among ``pace.points``, the throughput only rises or only falls with the number of
        requests. The maximum is therefore at one of the points or at the largest number of requests.
        """
        requests = min(self.places, rollouts)
        used = min(self.servers, requests)
        most = requests / used
        return used * max(self.pace.throughput(n) for n in (most, *(n for n, _ in self.pace.points if 1 <= n < most)))
