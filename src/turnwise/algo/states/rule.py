"""The interface of a rule that chooses the states of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from turnwise.algo.states.refresh import Refresh
from turnwise.types import State

STD_TOLERANCE = 1e-6  # rewards closer than this are equal: float scores differ in their last bits


@dataclass(frozen=True, slots=True)
class Profile:
    """K samples of one state under the frozen base policy: their rewards by the functional and the strict rule, ``_K``.

    ``strict`` is empty where the rewards are a pass rate that was read: nobody asked the strict rule.

    Raises:
        ValueError: there is no sample, or the two rules judged different numbers of them.
    """

    functional: tuple[float, ...]
    strict: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.functional:
            raise ValueError("a profile needs at least one sample")
        if self.strict and len(self.functional) != len(self.strict):
            raise ValueError(
                "functional and strict rewards judge the same samples; "
                f"got {len(self.functional)} and {len(self.strict)}"
            )

    @property
    def mean(self) -> float:
        """Mean functional reward (PivotRL, arXiv:2603.21383, Eq. 4)."""
        return sum(self.functional) / len(self.functional)

    @property
    def variance(self) -> float:
        """Population variance of the functional reward (Eq. 4)."""
        mean = self.mean
        return sum((reward - mean) ** 2 for reward in self.functional) / len(self.functional)

    @property
    def mixed(self) -> bool:
        """Whether the samples' outcomes disagree."""
        return self.variance > STD_TOLERANCE**2


class StateRule(Protocol):
    """Chooses the states to train on. The caller prepares the candidates (``source``) and, for ``k`` > 0, their profiles."""

    @property
    def source(self) -> Literal["expert", "tasks"]:
        """Candidates are every assistant turn of the expert trajectories, or the openings of tasks."""
        ...

    @property
    def k(self) -> int:
        """Samples to draw of each candidate before training; 0: no profile is needed."""
        ...

    @property
    def reprofile(self) -> Refresh | None:
        """When to profile again under the current policy and choose new states; None: never."""
        ...

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> Sequence[State]:
        """Returns the states to train on, in their order. ``profiles`` are by state id and are not read if ``k`` is 0.

        There may be more of both than fit into memory (``states.lazy``). A rule that reads only ids and returns the result of
        :func:`turnwise.algo.states.lazy.chosen` builds none of the states.
        """
        ...
