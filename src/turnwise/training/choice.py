"""The states that a run trains on: the candidates profiled under the current policy, and the rule's choice among them."""

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
    """The states that a run trains on first, and what chooses new ones as it goes on.

    Attributes:
        verdicts: counts of the verifiers' verdicts on the profile, by domain; empty without a profile.
        reprofile: None where the rule chooses once.
        pivots: entries ``pivots.*`` of the run's result; empty without a profile.
    """

    states: Sequence[State]
    verdicts: Mapping[str, float] = {}
    reprofile: Reprofile | None = None
    pivots: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Choice:
    """Profiles the candidates and chooses among them.

    Profile number n lies in ``profile-<n>/`` and ``profile-<n>.parquet`` of the run's folder; number 0 has no number.

    Attributes:
        candidates: where the run may act; the same ones whenever it chooses.
        player: samples one turn at each candidate (``max_turns=1``).
        module: the policy that is profiled.
    """

    settings: Settings
    parts: Parts
    candidates: Sequence[State]
    player: Player
    module: PolicyModule
    phases: Phases

    def first(self) -> Chosen:
        """The choice before training, after a profile under the base policy where the rule asks for one."""
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
        """The states that are kept after profile ``number``: 0 before training, then as often as the rule chooses anew."""
        return self.profiled(number)[1]

    def profiled(self, number: int = 0) -> tuple[Profiles, Sequence[State]]:
        """The profile, and the kept states. What an earlier start has sampled is read back."""
        rule, seed, distributed = self.parts.states, self.settings.seed, self.module.distributed
        name = f"profile-{number}" if number else "profile"
        key = (seed, "profile", number) if number else (seed, "profile")
        with self.phases.phase("profile", len(self.candidates)) as advance:
            if not is_sharded(self.module):
                self.module.to(self.settings.device)
            self._sync_weights()
            # the first profile keeps the engine's cache between shards, as kept runs did; servers drop nothing bit for bit
            afresh = self._sync_weights if number and not distributed.served else None
            shards = self.settings.folder / name
            data = self.settings.data
            rated = (
                data.pass_rates and data.file is not None and not number
            )  # rates of a file tell nothing of later policies
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
