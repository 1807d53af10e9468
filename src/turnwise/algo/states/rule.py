"""The interface of a rule that chooses the states of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from turnwise.algo.states.refresh import Refresh
from turnwise.types import State

STD_TOLERANCE = 1e-6  # rewards closer than this count as equal, because float scores differ in their last bits


@dataclass(frozen=True, slots=True)
class Profile:
    """The rewards of K samples of one state under the frozen base policy, by the functional and the strict rule.

    ``strict`` is empty if the rewards come from a pass rate in a file, because the strict rule was not applied there.

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
        """Returns the mean functional reward (PivotRL, arXiv:2603.21383, Eq. 4)."""
        return sum(self.functional) / len(self.functional)

    @property
    def variance(self) -> float:
        """Returns the population variance of the functional reward (Eq. 4)."""
        mean = self.mean
        return sum((reward - mean) ** 2 for reward in self.functional) / len(self.functional)

    @property
    def mixed(self) -> bool:
        """Returns whether the samples' outcomes disagree."""
        return self.variance > STD_TOLERANCE**2


class StateRule(Protocol):
    """Chooses the states to train on.

    The caller supplies the candidates (``source``) and, if ``k`` > 0, their profiles.
    """

    @property
    def source(self) -> Literal["expert", "tasks"]:
        """Returns what the candidates are: assistant turns of expert trajectories, or the openings of tasks."""
        ...

    @property
    def k(self) -> int:
        """Returns the number of samples to draw at each candidate before training; 0: no profile is needed."""
        ...

    @property
    def reprofile(self) -> Refresh | None:
        """Returns when to profile again under the current policy and choose new states; None: never."""
        ...

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> Sequence[State]:
        """Returns the states to train on, in their order. ``profiles`` are by state id and are not read if ``k`` is 0.

        States and profiles may be more than fit into memory (``states.lazy``). A rule that reads only ids and returns
        the result of :func:`turnwise.algo.states.lazy.chosen` does not build any state.
        """
        ...
