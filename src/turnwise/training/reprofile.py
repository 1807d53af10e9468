"""Chooses new states during training. The candidate states are profiled again when the fraction of groups whose rewards
differ has fallen since the last profile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from lightning import Callback

from turnwise.algo.states.batches import Batches
from turnwise.algo.states.lazy import chosen, places_of
from turnwise.algo.states.refresh import Refresh
from turnwise.algo.states.state_rule import STD_TOLERANCE
from turnwise.config.settings import RolloutSettings
from turnwise.rollouts.collect import Experience
from turnwise.training.iteration_metrics import totals_of
from turnwise.types import State


class Reprofile(Callback):
    """Returns the states of each iteration, from the states that were chosen by the last profile.

    The class is a callback, so that the checkpoint stores its data: the indices of the chosen states among the
    candidates, and for each iteration since the last profile the fraction of groups whose rewards differ. The indices
    are stored because a damaged profile could not be repeated: its policy no longer exists. Every process of a run has
    this callback and chooses the same states.

    Args:
        refresh: the rule that decides when to profile again.
        candidates: all states that may be chosen, in the same order at every start of the run.
        states: the states that were chosen before training.
        choose: function that takes the number of a profile, profiles the candidates under the current policy, and
            returns the chosen states.
        seed: seed of the order of the states.
        log: is called with a line if a profile keeps no state.
    """

    def __init__(
        self,
        refresh: Refresh,
        candidates: Sequence[State],
        states: Sequence[State],
        choose: Callable[[int], Sequence[State]],
        rollout: RolloutSettings,
        seed: int,
        log: Callable[[str], None],
    ) -> None:
        self.refresh, self.candidates, self.choose, self.log_line = refresh, candidates, choose, log
        self.rollout, self.seed = rollout, seed
        self.profiles, self.began = 1, 0  # number of profiles so far; first iteration after the last profile
        self.history: list[float] = []
        self.seconds = 0.0  # duration of the profile just before the current iteration, or 0
        # indices of the chosen states among the candidates; None: the states chosen before training
        self.places_S: np.ndarray | None = None
        self.batches = self._batches(states)

    def __call__(self, iteration: int) -> list[State]:
        return self.batches(iteration)

    def prepare(self, iteration: int) -> None:
        """Profiles the candidates and chooses new states, if ``refresh`` decides to profile before this iteration. All
        processes must call this method before each iteration.
        """
        self.seconds = 0.0
        if not self.refresh.due(self.history, self.profiles):
            return
        began, states = time.monotonic(), self.choose(self.profiles)
        if not len(states):
            self.log_line("the new profile leaves no state to train on: training continues with the previous states")
            states = self.batches.states
        self.profiles, self.began, self.history = self.profiles + 1, iteration, []
        self.places_S = places_of(self.candidates, states)
        self.batches = self._batches(states)
        self.seconds = time.monotonic() - began

    def collected(self, experience: Experience) -> dict[str, float]:
        """Stores the fraction of the groups of an iteration whose rewards differ, and returns metrics of the states."""
        share = mixed_share(experience)
        if share is not None:
            self.history.append(share)
        left = self.refresh.decay(self.history)
        return {
            "states/kept": len(self.batches.states),
            "states/profiles": self.profiles,
            **({} if left is None else {"states/decay": left}),
            "seconds/profile": self.seconds,
        }

    def _batches(self, states: Sequence[State]) -> Batches:
        """Returns the batches of ``states``, in random order. Each profile gives another order."""
        number = self.profiles - 1
        seed = f"{self.seed}/profile-{number}" if number else self.seed
        return Batches(states, seed, self.rollout.states, self.rollout.trajectories, self.began)

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        places = {} if self.places_S is None else {"places": torch.from_numpy(self.places_S)}
        return {"profiles": self.profiles, "began": self.began, "history": list(self.history), **places}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.profiles, self.began = state_dict["profiles"], state_dict["began"]
        self.history = list(state_dict["history"])
        if "places" in state_dict:
            self.places_S = state_dict["places"].cpu().numpy()
            self.batches = self._batches(chosen(self.candidates, self.places_S.tolist()))


def mixed_share(experience: Experience) -> float | None:
    """Returns the fraction of groups whose rewards differ, or None without groups. Groups that a refill replaced count
    as groups with equal rewards. Groups that a gate stopped are left out, because their episodes are incomplete.
    """
    totals = totals_of(experience)
    groups = len(totals) + len(experience.replaced)
    return sum(statistics.pstdev(total) > STD_TOLERANCE for total in totals) / groups if groups else None
