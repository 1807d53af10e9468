"""Profiles the candidate states again, and chooses new ones, when fewer groups have mixed outcomes."""

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
from turnwise.algo.states.rule import STD_TOLERANCE
from turnwise.config.settings import RolloutSettings
from turnwise.rollouts.collect import Experience
from turnwise.training.groups import totals_of
from turnwise.types import State


class Reprofile(Callback):
    """Returns the states of an iteration, from the set that the last profile chose.

    It is a callback, so that the checkpoint keeps its memory: the measure since the last profile, and the places of the chosen
    states among the candidates. A damaged profile on disk could not be computed again, because the policy of that time is
    gone. Every process of a run has one; all of them measure and choose the same.

    Args:
        refresh: decides when.
        candidates: all states that may be chosen, in the same order at every start.
        states: the candidates chosen before training.
        choose: takes the number of a profile, profiles under the current policy and returns the chosen states.
        rollout: how many states an iteration uses.
        seed: of the order of the states.
        log: is given a line if a profile keeps no state.
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
        self.profiles, self.began = 1, 0  # made so far; the iteration that the last one came before
        self.history: list[float] = []
        self.seconds = 0.0  # of a profile before the iteration under way
        self.places_S: np.ndarray | None = (
            None  # of the states among the candidates; None: those chosen before training
        )
        self.batches = self._batches(states)

    def __call__(self, iteration: int) -> list[State]:
        return self.batches(iteration)

    def prepare(self, iteration: int) -> None:
        """Profile and choose anew before this iteration, if it is due; all processes call."""
        self.seconds = 0.0
        if not self.refresh.due(self.history, self.profiles):
            return
        began, states = time.monotonic(), self.choose(self.profiles)
        if not len(states):
            self.log_line("the new profile keeps no state: training goes on with those that it had")
            states = self.batches.states
        self.profiles, self.began, self.history = self.profiles + 1, iteration, []
        self.places_S = places_of(self.candidates, states)
        self.batches = self._batches(states)
        self.seconds = time.monotonic() - began

    def collected(self, experience: Experience) -> dict[str, float]:
        """Remember what an iteration measured; answers the metrics of it."""
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
        """Epochs begin again with each set, in an order of their own."""
        number = self.profiles - 1
        seed = f"{self.seed}/profile-{number}" if number else self.seed
        return Batches(states, seed, self.rollout.states, self.rollout.trajectories, self.began)

    # -- what a checkpoint keeps ---------------------------------------------------------------------------------------

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
    """The share of the groups played whose rewards disagree, those that a refill replaced among them; None without groups.

    A group that a gate stopped is not counted: its rewards are those of half an episode.
    """
    totals = totals_of(experience)
    groups = len(totals) + len(experience.replaced)
    return sum(statistics.pstdev(total) > STD_TOLERANCE for total in totals) / groups if groups else None
