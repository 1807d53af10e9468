"""States of recurrent layers in the engine: at which lengths of a history they are kept, and where a pass starts.

Keys and values of a prefix can be used for every length within it, but a recurrent state belongs to one length. So a
row keeps the states at the lengths of its nodes. A node at another length starts from the nearest earlier state, and
the tokens between them are computed again. Computing tokens again costs time and never changes a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from turnwise.engines.prefill import Prefill, Segment
from turnwise.models.recurrence import Flow, States, pick, stack


class Mark(NamedTuple):
    """The states of all layers at one length of a history, and its last hidden state (D,) if that was computed."""

    states: States
    hidden: Tensor | None = None


def segments_from(slot: int, marks: Mapping[int, Mark], lengths: Iterable[int]) -> list[Segment]:
    """Returns the segments of a row to compute for nodes of these lengths, each from the nearest earlier mark."""
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

    Args:
        plan: the plan of the pass; its ``flow`` is set here.
        segments: the segments of the pass.
        marks: the known states of each row, by slot; states that the pass computes are added.
        lengths: the lengths of the nodes on each row.
    """

    def __init__(
        self,
        plan: Prefill,
        segments: Sequence[Segment],
        marks: Mapping[int, dict[int, Mark]],
        lengths: Mapping[int, Iterable[int]],
    ) -> None:
        self.segments, self.marks = segments, marks
        self.ends: list[tuple[int, int]] = []  # for each piece: its segment, and the length at which it ends
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
        """Adds the pass's states to the marks.

        ``hidden`` holds the last layer's hidden states of each segment, (length, D).
        """
        assert self.flow.last is not None
        for piece, (number, length) in enumerate(self.ends):
            here = hidden[number][length - 1 - self.segments[number].start].clone()  # a view would keep all of it
            states = pick(self.flow.last, torch.tensor([piece], device=self.flow.device))
            self.marks[self.segments[number].row][length] = Mark(states, here)


def steps(states: States, device: torch.device) -> Flow:
    """Returns the flow of one decoding step, in which each of n branches has one token."""
    count = len(next(iter(states.values())).inputs)
    return Flow(range(count), [1] * count, [-1] * count, count, device, given=states, keep=True)
