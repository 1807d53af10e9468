"""Decides at which lengths of a history the engine keeps recurrent-layer states, and where a prefill pass starts.

A recurrent state belongs to one length of a history, so a stored row keeps states at the lengths of its nodes. The
computation for another length starts from the nearest earlier state and repeats the tokens after that state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from turnwise.engines.prefill import EndToEnd, Segment, SideBySide
from turnwise.models.recurrence import Flow, States, pick, stack


class Mark(NamedTuple):
    """States of all recurrent layers at one length of a history (``states``).

    ``hidden`` is the last layer's hidden state (D,) of the last token, or None if it was not computed.
    """

    states: States
    hidden: Tensor | None = None


def segments_from(slot: int, marks: Mapping[int, Mark], lengths: Iterable[int]) -> list[Segment]:
    """Returns the segments of a row that must be computed to reach every length in ``lengths``.

    Each segment starts at the nearest earlier length with a known state (a mark). Overlapping segments are joined.
    """
    found: list[Segment] = []
    for length in sorted(lengths):
        start = max((known for known in marks if known < length), default=0)
        if found and found[-1].stop >= start:
            found[-1] = found[-1]._replace(stop=length)
        else:
            found.append(Segment(slot, start, length))
    return found


class Stops:
    """Keeps recurrent states at the lengths of nodes during a prefill pass.

    For this, each segment is divided into pieces that end at these lengths.

    Args:
        plan: the attention plan of the pass; the constructor sets its ``flow``.
        segments: the segments of the pass.
        marks: for each slot, the known states of its row; :meth:`keep` adds the states that the pass computes.
        lengths: for each slot, the lengths of the nodes on its row.
    """

    def __init__(
        self,
        plan: EndToEnd | SideBySide,
        segments: Sequence[Segment],
        marks: Mapping[int, dict[int, Mark]],
        lengths: Mapping[int, Iterable[int]],
    ) -> None:
        self.segments, self.marks = segments, marks
        self.ends: list[tuple[int, int]] = []  # for each piece of a segment: the segment, and the piece's end
        begin: list[int] = []
        length: list[int] = []
        above: list[int] = []
        for number, (segment, place) in enumerate(zip(segments, plan.first, strict=True)):
            last = segment.start
            for stop in sorted(n for n in lengths[segment.row] if segment.start < n <= segment.stop):
                above.append(len(begin) - 1 if last > segment.start else -1)
                begin.append(place + last - segment.start)
                length.append(stop - last)
                self.ends.append((number, stop))
                last = stop
        given = stack([marks[s.row][s.start].states if s.start else None for s in segments])
        self.flow = Flow(begin, length, above, plan.place.numel(), plan.place.device, given, keep=True)
        plan.flow = self.flow

    def keep(self, hidden: Sequence[Tensor]) -> None:
        """Adds to ``marks`` the recurrent states that the pass has computed at the end of each piece.

        Args:
            hidden: for each segment, the last layer's hidden states (length, D).
        """
        assert self.flow.last is not None
        for piece, (number, length) in enumerate(self.ends):
            here = hidden[number][length - 1 - self.segments[number].start].clone()  # so that ``hidden`` can be freed
            states = pick(self.flow.last, torch.tensor([piece], device=self.flow.device))
            self.marks[self.segments[number].row][length] = Mark(states, here)


def steps(states: States, device: torch.device) -> Flow:
    """Returns the flow of a decoding step, in which each branch gets one token and continues its own state."""
    count = len(next(iter(states.values())).inputs)
    return Flow(range(count), [1] * count, [-1] * count, count, device, given=states, keep=True)
