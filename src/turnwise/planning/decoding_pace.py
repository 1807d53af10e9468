"""Models how fast an engine decodes, as a function of the number of requests that it decodes together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

Points = Sequence[tuple[float, float]]
"""Decoding speeds: pairs (number of requests that one server decodes together, tokens per second of each request)."""


class Pace:
    """The decoding speed of one server: the seconds that a request needs for one token, as a function of the number of
    requests in progress. The seconds are interpolated linearly between ``points``, and extrapolated linearly beyond
    the first and the last point.

    A decoding step reads the weights once, and for each request its keys and values. The time of a step is therefore a
    constant plus a term that is proportional to the number of requests, and the total throughput approaches a limit.

    Args:
        points: measured or computed speeds (``Points``). With a single point, the speed does not depend on the number
            of requests.

    Raises:
        ValueError: there are no points, the numbers of requests do not increase from point to point, a rate (tokens
            per second of one request) is not positive, or a rate grows with the number of requests.
    """

    def __init__(self, points: Points) -> None:
        self.points = tuple((float(requests), float(rate)) for requests, rate in points)
        if not self.points:
            raise ValueError("a curve needs at least one point, such as 1:100")
        if any(requests < 0 or not 0 < rate < float("inf") for requests, rate in self.points):
            raise ValueError("each point requests:rate of a curve must have requests of at least 0 and a rate above 0")
        for (few, fast), (many, slow) in pairwise(self.points):
            if many <= few or slow > fast:
                raise ValueError(
                    "the requests of a curve must increase from point to point and the rate must not increase, got "
                    f"{few:g}:{fast:g} before {many:g}:{slow:g}"
                )
        self._at = [requests for requests, _ in self.points]
        self._lines: list[tuple[float, float]] = []  # constant and slope of each linear piece
        for (few, fast), (many, slow) in pairwise(self.points):
            slope = (1 / slow - 1 / fast) / (many - few)
            self._lines.append((1 / fast - slope * few, slope))
        self._lines = self._lines or [(1 / self.points[0][1], 0.0)]

    @classmethod
    def halving(cls, first: float, half: float) -> Pace:
        """Returns a pace at which each of n requests in progress gets ``first / (1 + n / half)`` tokens per second."""
        return cls([(0, first), (half, first / 2)])

    def seconds(self, requests: float) -> float:
        """Returns the seconds of a decoding step with ``requests`` requests. Fewer than 1 request counts as 1."""
        requests = max(1.0, requests)
        piece = bisect_right(self._at, requests) - 1
        constant, slope = self._lines[min(max(piece, 0), len(self._lines) - 1)]
        return max(constant + slope * requests, 1e-12)

    def throughput(self, requests: float) -> float:
        """Returns the total tokens per second of a server with ``requests`` requests in progress."""
        return requests / self.seconds(requests)
