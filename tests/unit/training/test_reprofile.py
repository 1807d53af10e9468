"""States chosen more than once: when, in which order they are played, and what a resumed run knows of it."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
import torch

from turnwise.algo.states.batches import Batches
from turnwise.algo.states.refresh import Refresh
from turnwise.config.settings import RolloutSettings
from turnwise.engines.engine import Sampling
from turnwise.rollouts.collect import Experience
from turnwise.training.profile import Reprofile, mixed_share
from turnwise.types import RolloutTree, State, Task

CANDIDATES = [
    State(f"d{i // 4}#t{i % 4}", Task("maze", "1", "train"), (1,), trajectory=f"d{i // 4}") for i in range(24)
]
ROLLOUT = RolloutSettings(states=4, sampling=Sampling(max_tokens=4), trajectories=2)
FALLS = [1.0, 1.0, 0.5, 0.25, 0.25, 1.0, 1.0, 0.5, 0.25]  # the measure, by iteration


def chosen_by(number: int) -> list[State]:
    """Other states each time."""
    return CANDIDATES[number::3]


def experience(share: float) -> Experience:
    """Four groups of two, of which ``share`` are mixed."""
    rewards = [{"total": [1.0, float(i >= 4 * share)]} for i in range(4)]
    return Experience([RolloutTree(state) for state in CANDIDATES[:4]], rewards)


class Run:
    """What a run does with its states; every set that was chosen, and what was told."""

    def __init__(self, keeps: Sequence[list[State]] = (), most: int = 4) -> None:
        self.asked: list[int] = []
        self.told: list[str] = []
        self.keeps = keeps

        def choose(number: int) -> list[State]:
            self.asked.append(number)
            return self.keeps[number - 1] if self.keeps else chosen_by(number)

        refresh = Refresh(0.5, window=2, gap=4, most=most)
        self.reprofile = Reprofile(refresh, CANDIDATES, chosen_by(0), choose, ROLLOUT, 0, self.told.append)

    def __call__(self, first: int, last: int) -> list[list[str]]:
        played = []
        for iteration in range(first, last):
            self.reprofile.prepare(iteration)
            played.append([state.id for state in self.reprofile(iteration)])
            self.metrics = self.reprofile.collected(experience(FALLS[iteration]))
        return played


def expected(states: Sequence[State], seed: int | str, iterations: range) -> list[list[str]]:
    batches = Batches(states, seed, 4, 2, first=iterations.start)
    return [[state.id for state in batches(i)] for i in iterations]


def test_the_states_of_each_profile_are_played_in_an_order_of_their_own() -> None:
    run = Run()
    played = run(0, 9)
    assert run.asked == [1]  # (0.5 + 0.25) / 2 is below half of 1
    assert played == expected(chosen_by(0), 0, range(4)) + expected(chosen_by(1), "0/profile-1", range(4, 9))
    assert run.metrics["states/profiles"] == 2 and run.metrics["states/kept"] == 8
    assert run.metrics["states/decay"] == pytest.approx(0.375 / 0.625)
    assert run.metrics["seconds/profile"] == 0


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_resumed_run_plays_what_it_would_have_played(stop: int) -> None:
    whole, first, second = Run(), Run(), Run()
    wanted = whole(0, 9)
    played = first(0, stop)
    buffer = io.BytesIO()
    torch.save(first.reprofile.state_dict(), buffer)
    buffer.seek(0)
    second.reprofile.load_state_dict(torch.load(buffer, weights_only=True))
    assert played + second(stop, 9) == wanted
    assert first.asked + second.asked == whole.asked  # a profile whose iteration was saved is not asked for again
    assert second.reprofile.state_dict() == whole.reprofile.state_dict()


def test_a_profile_that_keeps_nothing_leaves_the_states_as_they_were() -> None:
    run = Run(keeps=[[]])
    assert {name for batch in run(0, 9) for name in batch} <= {state.id for state in chosen_by(0)}
    assert run.asked == [1] and run.reprofile.profiles == 2
    assert len(run.told) == 1


def test_the_measure_by_hand() -> None:
    assert mixed_share(experience(0.75)) == 0.75
    assert mixed_share(Experience()) is None
    trees = [RolloutTree(state) for state in CANDIDATES[:4]]
    trees[0].stopped = True  # by a gate: its rewards say nothing
    nan = float("nan")  # of a leaf whose world failed
    rewards = [{"total": [0.0, 1.0]}, {"total": [0.0, 1.0]}, {"total": [1.0, nan, 1.0]}, {"total": [nan, nan]}]
    assert mixed_share(Experience(trees, rewards)) == 1 / 2
    alike = [(trees[0], rewards[2])] * 2
    assert (
        mixed_share(Experience(trees, rewards, replaced=alike)) == 1 / 4
    )  # a refill replaced groups that were all alike
    assert mixed_share(Experience(replaced=alike)) == 0
