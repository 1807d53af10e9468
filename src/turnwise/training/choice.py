"""The states that a run trains on: the candidates profiled under the policy as it is, and the rule's choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from turnwise.algo.states.lazy import chosen, ids_of
from turnwise.algo.states.pivots import summarise
from turnwise.algo.states.rule import StateRule
from turnwise.rollouts.play import Player
from turnwise.training.distributed import DistributedContext
from turnwise.training.module import PolicyModule
from turnwise.training.profile import Profiles, profile
from turnwise.training.progress import Phases
from turnwise.training.sharding import is_sharded
from turnwise.types import State


@dataclass(frozen=True, slots=True)
class Choice:
    """Args:
    rule: asks for ``k`` samples of each candidate, and chooses.
    candidates: where the run may act; the same ones whenever it chooses.
    player: engine and world, one turn a state.
    module: whose policy is profiled.
    device: where it is while it is profiled.
    folder: the run's; profile number n lies in ``profile-<n>/`` and ``profile-<n>.parquet``, the first without a number.
    seed: the run's; with the profile's number it seeds every draw.
    phases: tells of the progress, and what was found.
    distributed: who plays a share of it; all choose alike.
    """

    rule: StateRule
    candidates: Sequence[State]
    player: Player
    module: PolicyModule
    device: torch.device
    folder: Path
    seed: int
    phases: Phases
    distributed: DistributedContext

    def __call__(self, number: int = 0) -> Sequence[State]:
        """The states that are kept after profile ``number``: 0 before training, then as often as the rule chooses anew."""
        return self.profiled(number)[1]

    def profiled(self, number: int = 0) -> tuple[Profiles, Sequence[State]]:
        """The profile, and the kept states. What an earlier start has sampled is read back."""
        name = f"profile-{number}" if number else "profile"
        key = (self.seed, "profile", number) if number else (self.seed, "profile")
        with self.phases.phase("profile", len(self.candidates)) as advance:
            if not is_sharded(self.module):
                self.module.to(self.device)
            self._hand_over()
            # the base policy's profile is the one that runs had before there were others; servers drop nothing bit for bit
            afresh = self._hand_over if number and not self.distributed.served else None
            shards = self.folder / name
            profiles = profile(
                self.player, self.candidates, self.rule.k, shards, key, advance, self.distributed, afresh
            )
        places = (place for place, one in enumerate(ids_of(self.candidates)) if one in profiles)
        kept = self.rule.select(chosen(self.candidates, places), profiles)
        if self.distributed.first:
            profiles.write(self.folder / f"{name}.parquet", kept)
        told = summarise(profiles.values())
        missed = "-" if told.miss_rate is None else f"{told.miss_rate:.0%}"
        self.phases.log(
            f"{told.states} expert turns profiled: {told.zero_signal:.0%} carry no signal, {len(kept)} kept; an exact match "
            f"would have missed {missed} of the acceptable actions"
        )
        return profiles, kept

    def _hand_over(self) -> None:
        self.module.sync_weights(self.player.engine)
