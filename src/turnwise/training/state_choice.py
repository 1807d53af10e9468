"""Chooses the states that a run trains on. Some rules (``states``) need a profile of the candidate states first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from turnwise.algo.states.lazy import chosen, ids_of
from turnwise.algo.states.pivots import ProfileSummary, summarise
from turnwise.rollouts.player import Player
from turnwise.training.build_parts import Parts, Settings
from turnwise.training.module import PolicyModule
from turnwise.training.profile_states import Profiles, profile
from turnwise.training.progress import Phases
from turnwise.training.reprofile import Reprofile
from turnwise.training.sharding import is_sharded
from turnwise.training.verdict_counts import count_profile
from turnwise.types import State


class Chosen(NamedTuple):
    """The states that were chosen before training, with facts about the profile.

    Attributes:
        states: the chosen states. The run trains on these states until ``reprofile`` chooses new states.
        verdicts: counts of the verifiers' verdicts in the profile, by domain. Empty without a profile.
        reprofile: chooses new states during training. None if states are chosen only once.
        pivots: the entries ``pivots.*`` of the run's result. Empty without a profile.
    """

    states: Sequence[State]
    verdicts: Mapping[str, float] = {}
    reprofile: Reprofile | None = None
    pivots: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Choice:
    """Profiles the candidate states under the current policy and chooses among the candidates.

    A profile is stored in the run's folder, in shards and then in one file. The first profile is ``profile/`` and
    ``profile.parquet``; later profiles are ``profile-<n>/`` and ``profile-<n>.parquet`` with n from 1.

    Attributes:
        player: samples single actions at the candidates (``max_turns=1``).
        module: the policy that is profiled.
    """

    settings: Settings
    parts: Parts
    candidates: Sequence[State]
    player: Player
    module: PolicyModule
    phases: Phases

    def first(self) -> Chosen:
        """Returns the states chosen before training. If the rule needs a profile, the base policy is profiled first."""
        rule, settings = self.parts.states, self.settings
        if not rule.k:
            return Chosen(rule.select(self.candidates, {}))
        profiles, kept, found = self.profiled()
        verdicts = count_profile(profiles, self.candidates)
        pivots = found.result(len(kept))
        if rule.reprofile is None:
            return Chosen(kept, verdicts, pivots=pivots)
        of_run = (self, settings.rollout, settings.seed, self.phases.log)
        return Chosen(kept, verdicts, Reprofile(rule.reprofile, self.candidates, kept, *of_run), pivots)

    def __call__(self, number: int) -> Sequence[State]:
        """Makes profile ``number`` (0: the profile before training) and returns the states that the rule keeps."""
        return self.profiled(number)[1]

    def profiled(self, number: int = 0) -> tuple[Profiles, Sequence[State], ProfileSummary]:
        """Profiles the candidates under the current policy. Returns the profiles, the states that the rule keeps, and a
        summary.

        Samples that an earlier start of the run stored are read from the files of profile ``number``.
        """
        rule, seed, distributed = self.parts.states, self.settings.seed, self.module.distributed
        name = f"profile-{number}" if number else "profile"
        key = (seed, "profile", number) if number else (seed, "profile")
        with self.phases.phase("profile", len(self.candidates)) as advance:
            if not is_sharded(self.module):
                self.module.to(self.settings.device)
            sync_weights = partial(self.module.sync_weights, self.player.engine)
            sync_weights()
            # For the first profile, the engine keeps its cache between shards, as in the runs of the shipped results.
            # Emptying the cache of a server is useless, because servers never repeat a sample bit for bit.
            afresh = sync_weights if number and not distributed.served else None
            shards = self.settings.folder / name
            data = self.settings.data
            # the pass rates in a file do not describe later policies
            rated = data.pass_rates and data.file is not None and not number
            profiles = profile(self.player, self.candidates, rule.k, shards, key, advance, distributed, afresh, rated)
        places = (place for place, one in enumerate(ids_of(self.candidates)) if one in profiles)
        kept = rule.select(chosen(self.candidates, places), profiles)
        if distributed.first:
            profiles.write(self.settings.folder / f"{name}.parquet", kept)
        found = summarise(profiles.values())
        missed = "-" if found.miss_rate is None else f"{found.miss_rate:.0%}"
        self.phases.log(
            f"{found.states} expert turns profiled: at {found.zero_signal:.0%} of these turns all sampled actions have the "
            f"same reward; {len(kept)} turns are kept; an exact match would miss {missed} of the acceptable actions"
        )
        return profiles, kept, found
