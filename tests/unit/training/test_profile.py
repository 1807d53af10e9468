"""Profiles of states, and new ones during training."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from turnwise.config.settings import RolloutSettings
from turnwise.engines.engine import Sample, Sampling
from turnwise.methods.pivotrl import Pivots
from turnwise.methods.states import Batches, Profile, Refresh
from turnwise.rollouts.collect import Experience
from turnwise.rollouts.player import Player
from turnwise.training import profile as profiling
from turnwise.training.profile import (
    Reprofile,
    mixed_share,
    profile,
    profile_costs,
    profiles_of,
    read_profile,
    why_profile_leaves_none,
    write_profile,
)
from turnwise.types import Pivot, RolloutTree, State, Task
from turnwise_worlds.household.environment import HouseholdEnv

# -- profiles ----------------------------------------------------------------------------------------------------------


ACTIONS = ("look", "go to desk 1", "inventory")
K = 4


class Chat:
    """An action's ids are its number among ``ACTIONS``."""

    def bridge(self, observation: Any, truncated: bool = False) -> list[int]:
        raise AssertionError("single turns have no bridge")

    def decode(self, action_ids: Sequence[int]) -> str:
        return ACTIONS[action_ids[0]]


class Engine:
    """Draws by the seed alone."""

    version = 0

    def __init__(self) -> None:
        self.asked = 0

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        return 0

    def fork(self, node: int) -> int:
        return 0

    def sample(self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Any) -> Any:
        self.asked += len(nodes)
        samples = [Sample([random.Random(seed).randrange(len(ACTIONS))], [0.0]) for seed in seeds]
        for told in enumerate(samples):
            on_sample(*told)
        return samples

    def close(self, nodes: Sequence[int]) -> None: ...


@pytest.fixture(autouse=True)
def few_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "TOGETHER", 5 * K)


@pytest.fixture(scope="module")
def states() -> list[State]:
    tasks = HouseholdEnv().tasks("train", 23)
    return [State(f"d{i}#t0", task, (1,), expert="look", trajectory=f"d{i}") for i, task in enumerate(tasks)]


def player_of(engine: Any) -> Player:
    return Player(engine, HouseholdEnv(), Chat(), Sampling(), max_turns=1)


def test_a_profile_is_read_back_by_the_policy_that_made_it(states: list[State], tmp_path: Path) -> None:
    engine, path = Engine(), tmp_path / "profile.parquet"
    assert read_profile(path, 0) is None and profile_costs(tmp_path) == {}
    table = profile(player_of(engine), states, K, "key")
    assert engine.asked == 23 * K
    profiles = profiles_of(table)
    assert list(profiles) == [state.id for state in states]
    kept = Pivots(k=K, keep="mixed").select(states, profiles)
    write_profile(path, table, profiles, kept)
    again = read_profile(path, 0)
    assert again is not None and profiles_of(again) == profiles
    assert read_profile(path, 7) is None  # a run that begins again may profile at another iteration
    rows, names = pq.read_table(path).to_pylist(), {state.id for state in kept}
    assert 0 < len(names) < len(rows) == 23
    for row in rows:
        one = profiles[row["state_id"]]
        assert (row["mean"], row["variance"], row["kept"]) == (one.mean, one.variance, row["state_id"] in names)
    costs = profile_costs(tmp_path)
    assert costs["profile_turns"] == costs["profile_tokens"] == 23 * K  # an action is one token here
    assert costs["profile_cpu_seconds"] > 0
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert read_profile(path, 0) is None


def test_pass_rates_are_profiles_that_cost_nothing_and_other_states_are_sampled(
    states: list[State], tmp_path: Path
) -> None:
    some = [replace(s, pivot=Pivot(i % 3, 8)) if i % 2 else s for i, s in enumerate(states)]
    some[0] = replace(some[0], pivot=Pivot())  # a row without a pass rate
    engine, counted = Engine(), []
    table = profile(player_of(engine), some, K, "key", counted.append, rated=True)
    profiles = profiles_of(table)
    assert engine.asked == 12 * K and len(profiles) == 23 == round(sum(counted), 6)
    for place, state in enumerate(some):
        one = profiles[state.id]
        if place % 2:
            assert one.mean == (place % 3) / 8 and len(one.functional) == 8 and one.strict == ()
        else:
            assert len(one.functional) == len(one.strict) == K
    write_profile(tmp_path / "profile.parquet", table, profiles, [])
    assert profile_costs(tmp_path)["profile_turns"] == 12 * K
    assert table.schema.field("strict").type == pa.list_(pa.float64())
    engine = Engine()
    profile(player_of(engine), some, K, "key")  # pass rates are not read unless they are wanted
    assert engine.asked == 23 * K


# -- new profiles ------------------------------------------------------------------------------------------------------


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


# -- no state is left --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "cut", "longest", "remedy"),
    [
        ([[0, 0], [0, 0]], 0, 9, "method=sft"),
        ([[0, 0], [0, 0]], 3, 9, "raise rollout.sampling.max_tokens"),
        ([[0, 0], [0, 0]], 3, 8, "method=sft"),  # demonstrated replies fit, so the policy does not end its own
        ([[1, 1], [1, 1]], 0, 9, "harder data"),
        ([[1, 1], [0, 1]], 0, 9, "states.lambda_diff"),
        ([[1, 1], [0, 0]], 0, 9, "raise states.k,"),
    ],
)
def test_the_remedy_is_of_what_happened(rewards: list[list[float]], cut: int, longest: int, remedy: str) -> None:
    profiles = {str(n): Profile(tuple(row), tuple(row)) for n, row in enumerate(rewards)}
    table = pa.table({"actions": [["a", "b"] for _ in rewards]})
    table = table.replace_schema_metadata({b"turnwise": json.dumps({"cut": cut}).encode()})
    assert remedy in why_profile_leaves_none(table, profiles, longest, 8)
