"""Pivots: the expert turns at which sampled actions have different rewards (PivotRL, arXiv:2603.21383).

A group-normalised method learns only from pivots: if all samples of a state have the same reward, each advantage is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Interval

from turnwise.algo.states.refresh import Refresh
from turnwise.algo.states.state_rule import STD_TOLERANCE, Profile
from turnwise.types import State

Keep = Literal["adv", "mixed", "all"]


@dataclass(frozen=True, slots=True)
class Pivots:
    """Chooses the expert turns to train on by their profiles. The profile of a turn holds the rewards of the actions
    that a policy sampled at this turn.

    A turn is mixed if these rewards differ. ``adv`` keeps mixed turns whose mean reward is below ``lambda_diff`` (Eq.
    5), ``mixed`` keeps every mixed turn, and ``all`` keeps every candidate (the paper's random turns). ``k`` is the
    number of samples per state; the paper gives neither ``k`` nor ``lambda_diff``. ``refresh``, ``refresh_window``,
    ``refresh_gap`` and ``refresh_most`` are not in the paper. They decide when actions are sampled at the turns again
    and the turns are chosen anew (:class:`Refresh`). With ``refresh=None`` the turns are chosen only once.
    """

    source: ClassVar[Literal["expert"]] = "expert"

    k: Annotated[int, Interval(ge=2, le=2**16)] = 8  # the rewards of a single sample cannot differ
    lambda_diff: Annotated[float, Interval(gt=0, le=1)] = 0.8
    keep: Keep = "adv"
    refresh: Annotated[float, Interval(gt=0, lt=1)] | None = None
    refresh_window: Annotated[int, Ge(1)] = 3
    refresh_gap: Annotated[int, Ge(1)] = 6
    refresh_most: Annotated[int, Ge(2)] = 4  # the base policy's profile is the first

    @property
    def reprofile(self) -> Refresh | None:
        if self.refresh is None:
            return None
        return Refresh(self.refresh, self.refresh_window, self.refresh_gap, self.refresh_most)

    def keeps(self, profile: Profile) -> bool:
        if self.keep == "all":
            return True
        return profile.mixed and (self.keep == "mixed" or profile.mean < self.lambda_diff)

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> Sequence[State]:
        missing = [state.id for state in states if state.id not in profiles]
        if missing:
            raise KeyError(
                f"{len(missing)} of {len(states)} states have no profile; the first of them is {missing[0]!r}"
            )
        return [state for state in states if self.keeps(profiles[state.id])]


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """A summary of the profiles of all candidate states before training. Fractions are in [0, 1]."""

    states: int
    zero_signal: float  # fraction of states whose samples all have the same reward
    solved: float  # fraction of states at which every sample has the greatest reward, 1
    # share of functionally correct samples that the strict rule refuses; None if no sample is functionally correct
    miss_rate: float | None

    def result(self, kept: int) -> dict[str, float]:
        shares = {"without_signal": self.zero_signal, "solved": self.solved, "failed": self.zero_signal - self.solved}
        return {"candidates": self.states, "kept": kept, **{name: round(value, 4) for name, value in shares.items()}}


def summarise(profiles: Iterable[Profile]) -> ProfileSummary:
    states = mixed = solved = functional = misses = 0
    for profile in profiles:
        states += 1
        mixed += profile.mixed
        solved += not profile.mixed and profile.mean >= 1 - STD_TOLERANCE
        strict_of_functional = [strict for paid, strict in zip(profile.functional, profile.strict) if paid >= 1]
        functional += len(strict_of_functional)
        misses += sum(strict <= 0 for strict in strict_of_functional)
    if not states:
        raise ValueError("there are no profiles to summarise")
    return ProfileSummary(
        states=states,
        zero_signal=1 - mixed / states,
        solved=solved / states,
        miss_rate=misses / functional if functional else None,
    )
