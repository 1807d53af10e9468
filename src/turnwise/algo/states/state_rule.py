"""The interface of a rule that chooses the states of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from turnwise.algo.states.refresh import Refresh
from turnwise.types import State

STD_TOLERANCE = 1e-6  # rewards with at most this std count as equal, because float scores differ in their last bits


@dataclass(frozen=True, slots=True)
class Profile:
    """The rewards of K actions that one policy sampled at one state, once by the functional and once by the strict
    rule. The functional rule accepts every action that is equivalent to the demonstrated action. The strict rule
    accepts only exactly the demonstrated action. The policy is the base policy, or the current policy if states are
    profiled again.

    ``strict`` is empty if the rewards were read from a file that gives only a pass rate. A ValueError is raised if
    there is no sample, or if the two rules have different numbers of rewards.
    """

    functional: tuple[float, ...]
    strict: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.functional:
            raise ValueError("a profile needs at least one sample")
        if self.strict and len(self.functional) != len(self.strict):
            raise ValueError(
                "functional and strict must both have one reward for each sample, "
                f"got {len(self.functional)} and {len(self.strict)}"
            )

    @property
    def mean(self) -> float:
        """Mean functional reward (PivotRL, arXiv:2603.21383, Eq. 4), as ``variance`` its population variance."""
        return sum(self.functional) / len(self.functional)

    @property
    def variance(self) -> float:
        mean = self.mean
        return sum((reward - mean) ** 2 for reward in self.functional) / len(self.functional)

    @property
    def mixed(self) -> bool:
        return self.variance > STD_TOLERANCE**2


class StateRule(Protocol):
    """Chooses the states to train on. The caller supplies the candidate states and, if ``k`` > 0, their profiles."""

    @property
    def source(self) -> Literal["expert", "tasks"]:
        """Assistant turns of expert trajectories, or the first prompts of tasks."""
        ...

    @property
    def k(self) -> int:
        """Actions to sample at each candidate before training; 0: no profile."""
        ...

    @property
    def reprofile(self) -> Refresh | None:
        """Decides when states are profiled and chosen again; None: states are chosen once."""
        ...

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> Sequence[State]:
        """In the order of ``states``. If ``k`` is 0, ``profiles`` (by state id) is not read."""
        ...
