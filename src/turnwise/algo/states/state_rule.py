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
        """Returns the mean functional reward (PivotRL, arXiv:2603.21383, Eq. 4)."""
        return sum(self.functional) / len(self.functional)

    @property
    def variance(self) -> float:
        """Returns the population variance of the functional reward (Eq. 4)."""
        mean = self.mean
        return sum((reward - mean) ** 2 for reward in self.functional) / len(self.functional)

    @property
    def mixed(self) -> bool:
        return self.variance > STD_TOLERANCE**2


class StateRule(Protocol):
    """Chooses the states to train on. The caller supplies the candidate states and, if ``k`` > 0, their profiles."""

    @property
    def source(self) -> Literal["expert", "tasks"]:
        """Returns the kind of the candidate states: assistant turns of expert trajectories (``expert``) or the first
        prompts of tasks (``tasks``).
        """
        ...

    @property
    def k(self) -> int:
        """Returns the number of actions to sample at each candidate state before training, or 0 for no profile."""
        ...

    @property
    def reprofile(self) -> Refresh | None:
        """Returns the rule that decides when to profile the candidate states again (under the current policy) and to
        choose states anew, or None if states are chosen only once.
        """
        ...

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> Sequence[State]:
        """Returns the states to train on, in the order of ``states``. ``profiles`` maps a state's id to its profile. If
        ``k`` is 0, ``profiles`` is not read.
        """
        ...
