"""Pivots: the expert turns at which sampled outcomes disagree (PivotRL, arXiv:2603.21383).

Only such turns teach a group-normalised method anything: where all samples of a state earn the same, each advantage is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from turnwise.states.base import STD_TOLERANCE, Profile
from turnwise.types import State

Keep = Literal["adv", "mixed", "all"]


@dataclass(frozen=True, slots=True)
class Pivots:
    """Which profiled turns to train on.

    ``adv`` keeps mixed turns of mean below ``lambda_diff`` (Eq. 5), ``mixed`` every mixed turn, ``all`` every candidate
    (the paper's random turns). ``k`` is the samples a state; the paper gives neither it nor ``lambda_diff``.

    Raises:
        ValueError: ``k`` is below 2, ``lambda_diff`` is not above 0, or ``keep`` is unknown.
    """

    source: ClassVar[Literal["expert"]] = "expert"

    k: int = 8
    lambda_diff: float = 0.8
    keep: Keep = "adv"

    def __post_init__(self) -> None:
        if self.k < 2:
            raise ValueError(f"k must be at least 2: one sample cannot disagree with itself; got {self.k}")
        if not self.lambda_diff > 0:
            raise ValueError(f"lambda_diff must be above 0, or no turn is kept; got {self.lambda_diff}")
        if self.keep not in ("adv", "mixed", "all"):
            raise ValueError(f"keep must be adv, mixed or all, got {self.keep!r}")

    def keeps(self, profile: Profile) -> bool:
        """Whether a turn of this profile is trained on."""
        if self.keep == "all":
            return True
        return profile.mixed and (self.keep == "mixed" or profile.mean < self.lambda_diff)

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> list[State]:
        """The kept states, in their order. ``profiles`` goes by state id.

        Raises:
            KeyError: a state has no profile.
        """
        missing = [state.id for state in states if state.id not in profiles]
        if missing:
            raise KeyError(f"{len(missing)} of {len(states)} states have no profile, the first is {missing[0]!r}")
        return [state for state in states if self.keeps(profiles[state.id])]


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """What a profile says before any training. Shares are in [0, 1]."""

    states: int
    zero_signal: float  # share of states whose samples all earned the same
    solved: float  # share of states that every sample solved (reward at its greatest, 1)
    miss_rate: float | None  # Pr[strict = 0 | functional = 1] over samples; None where no sample was functional
    yield_curve: tuple[tuple[float, int], ...]  # (lambda_diff, states that ``adv`` keeps)


def summarise(profiles: Iterable[Profile], lambdas: Sequence[float] | None = None) -> ProfileSummary:
    """Yield curve, share of zero-signal turns and miss rate of the strict rule.

    Args:
        profiles: one a state.
        lambdas: where to read the yield curve; 0.1, 0.2 ... 1.0 unless given.

    Raises:
        ValueError: there is no profile.
    """
    profiles = list(profiles)
    if not profiles:
        raise ValueError("no profile to summarise")
    mixed = [profile.mean for profile in profiles if profile.mixed]
    solved = sum(not profile.mixed and profile.mean >= 1 - STD_TOLERANCE for profile in profiles)
    strict_of_functional = [
        strict
        for profile in profiles
        for functional, strict in zip(profile.functional, profile.strict)
        if functional >= 1
    ]
    misses = sum(strict <= 0 for strict in strict_of_functional)
    lambdas = [step / 10 for step in range(1, 11)] if lambdas is None else lambdas
    return ProfileSummary(
        states=len(profiles),
        zero_signal=1 - len(mixed) / len(profiles),
        solved=solved / len(profiles),
        miss_rate=misses / len(strict_of_functional) if strict_of_functional else None,
        yield_curve=tuple((limit, sum(mean < limit for mean in mixed)) for limit in lambdas),
    )
