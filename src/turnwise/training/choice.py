"""Chooses the states that a run trains on: profiles the candidates under the current policy and applies the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turnwise.algo.states.lazy import chosen, ids_of
from turnwise.algo.states.pivots import summarise
from turnwise.rollouts.play import Player
from turnwise.training.module import PolicyModule
from turnwise.training.parts import Parts, Settings
from turnwise.training.profile import Profiles, profile
from turnwise.training.progress import Phases
from turnwise.training.reprofile import Reprofile
from turnwise.training.sharding import is_sharded
from turnwise.training.verdicts import count_profile
from turnwise.types import State


class Chosen(NamedTuple):
    """The first states that a run trains on, and what chooses new ones later.

    Attributes:
        verdicts: counts of the verifiers' verdicts in the profile, by domain; empty without a profile.
        reprofile: None if the rule chooses only once.
        pivots: the entries ``pivots.*`` of the run's result; empty without a profile.
    """

    states: Sequence[State]
    verdicts: Mapping[str, float] = {}
    reprofile: Reprofile | None = None
    pivots: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Choice:
    """Profiles the candidates and chooses among them.

    Profile number n is stored in ``profile-<n>/`` and ``profile-<n>.parquet`` of the run's folder; number 0 is without
    number.

    Attributes:
        settings, parts: of the run.
        candidates: where the run may act; the same at every choice.
        player: samples one turn at each candidate (``max_turns=1``).
        module: the policy that is profiled.
        phases: shows progress.
    """

    settings: Settings
    parts: Parts
    candidates: Sequence[State]
    player: Player
    module: PolicyModule
    phases: Phases

    def first(self) -> Chosen:
        """Returns the choice before training, after a profile under the base policy if the rule needs one."""
        rule, settings = self.parts.states, self.settings
        if not rule.k:
            return Chosen(rule.select(self.candidates, {}))
        profiles, kept = self.profiled()
        verdicts = count_profile(profiles, self.candidates)
        pivots = summarise(profiles.values()).result(len(kept))
        if rule.reprofile is None:
            return Chosen(kept, verdicts, pivots=pivots)
        of_run = (self, settings.rollout, settings.seed, self.phases.log)
        return Chosen(kept, verdicts, Reprofile(rule.reprofile, self.candidates, kept, *of_run), pivots)

    def __call__(self, number: int) -> Sequence[State]:
        """Returns the states that profile ``number`` keeps.

        The number is 0 before training and grows with each later choice.
        """
        return self.profiled(number)[1]

    def profiled(self, number: int = 0) -> tuple[Profiles, Sequence[State]]:
        """Returns the profile and the kept states. Samples of an earlier start are read back."""
        rule, seed, distributed = self.parts.states, self.settings.seed, self.module.distributed
        name = f"profile-{number}" if number else "profile"
        key = (seed, "profile", number) if number else (seed, "profile")
        with self.phases.phase("profile", len(self.candidates)) as advance:
            if not is_sharded(self.module):
                self.module.to(self.settings.device)
            self._sync_weights()
            # The first profile keeps the engine's cache between shards, as in the shipped results.
            # Servers never repeat a sample bit for bit, so emptying their cache has no use.
            afresh = self._sync_weights if number and not distributed.served else None
            shards = self.settings.folder / name
            data = self.settings.data
            rated = (
                data.pass_rates and data.file is not None and not number
            )  # pass rates in a file say nothing about later policies
            profiles = profile(self.player, self.candidates, rule.k, shards, key, advance, distributed, afresh, rated)
        places = (place for place, one in enumerate(ids_of(self.candidates)) if one in profiles)
        kept = rule.select(chosen(self.candidates, places), profiles)
        if distributed.first:
            profiles.write(self.settings.folder / f"{name}.parquet", kept)
        found = summarise(profiles.values())
        missed = "-" if found.miss_rate is None else f"{found.miss_rate:.0%}"
        self.phases.log(
            f"{found.states} expert turns profiled: {found.zero_signal:.0%} carry no signal, {len(kept)} kept; an exact match "
            f"would have missed {missed} of the acceptable actions"
        )
        return profiles, kept

    def _sync_weights(self) -> None:
        self.module.sync_weights(self.player.engine)
