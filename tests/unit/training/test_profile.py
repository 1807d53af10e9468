"""Profiles: what is sampled, what the file holds, and what it cost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from turnwise.algo.states.pivots import Pivots
from turnwise.engines.engine import Sample, Sampling
from turnwise.rollouts.player import Player
from turnwise.training import profile as profiling
from turnwise.training.profile import profile, profile_costs, profiles_of, read_profile, write_profile
from turnwise.types import Pivot, State
from turnwise_worlds.household.environment import HouseholdEnv

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

    def sample(self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Any = None) -> Any:
        self.asked += len(nodes)
        return [Sample([random.Random(seed).randrange(len(ACTIONS))], [0.0]) for seed in seeds]

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
    assert engine.asked == 12 * K and len(profiles) == 23 == sum(counted)
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
