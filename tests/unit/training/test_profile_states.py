"""The profile on disk: whatever it is read back by, it is what was sampled, and a kill costs the shard under way."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from turnwise.algo.states.lazy import chosen
from turnwise.algo.states.pivots import Pivots
from turnwise.engines.engine import Sample, Sampling
from turnwise.envs.household.environment import HouseholdEnv
from turnwise.rollouts.player import Player
from turnwise.training import profile_states as profiling
from turnwise.training.costs import profile_costs
from turnwise.training.profile_states import Profiles, profile
from turnwise.types import Pivot, State

ACTIONS = ("look", "go to desk 1", "inventory")
K = 4


class Chat:
    """An action's ids are its number among ``ACTIONS``."""

    def bridge(self, observation: Any, truncated: bool = False) -> list[int]:
        raise AssertionError("single turns have no bridge")

    def decode(self, action_ids: Sequence[int]) -> str:
        return ACTIONS[action_ids[0]]


class Engine:
    """Draws by the seed alone; ``fail_after`` calls it is gone."""

    version = 0

    def __init__(self, fail_after: int | None = None) -> None:
        self.left, self.asked = fail_after, 0

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        return 0

    def fork(self, node: int) -> int:
        return 0

    def sample(self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Any = None) -> Any:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left = None if self.left is None else self.left - 1
        self.asked += len(nodes)
        return [Sample([random.Random(seed).randrange(len(ACTIONS))], [0.0]) for seed in seeds]

    def close(self, nodes: Sequence[int]) -> None: ...


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "SHARD", 5 * K)


@pytest.fixture(scope="module")
def states() -> list[State]:
    tasks = HouseholdEnv().tasks("train", 23)
    return [State(f"d{i}#t0", task, (1,), expert="look", trajectory=f"d{i}") for i, task in enumerate(tasks)]


def played(states: Sequence[State], folder: Path, engine: Any) -> Profiles:
    player = Player(engine, HouseholdEnv(), Chat(), Sampling(), max_turns=1)
    return profile(player, states, K, folder, "key")


def test_a_profile_is_read_back_and_a_kill_costs_one_shard(states: list[State], tmp_path: Path) -> None:
    whole = played(states, tmp_path / "whole", Engine())
    with pytest.raises(KeyboardInterrupt):
        played(states, tmp_path / "killed", Engine(fail_after=3))
    engine = Engine()
    again = played(states, tmp_path / "killed", engine)
    assert engine.asked == (23 - 15) * K
    assert dict(again) == dict(whole) and list(again) == [state.id for state in states]
    engine = Engine(fail_after=0)
    assert dict(played(states, tmp_path / "killed", engine)) == dict(whole)


def test_the_file_in_the_end_is_the_one_that_a_single_table_gives(states: list[State], tmp_path: Path) -> None:
    found = played(states, tmp_path / "profile", Engine())
    kept = Pivots(k=K, keep="mixed").select(states, found)
    found.write(tmp_path / "profile.parquet", kept)
    rows = [row for shard in sorted((tmp_path / "profile").iterdir()) for row in pq.read_table(shard).to_pylist()]
    names = {state.id for state in kept}
    for row in rows:
        one = found[row["state_id"]]
        row |= {"mean": one.mean, "variance": one.variance, "kept": row["state_id"] in names}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "one.parquet")
    assert 0 < len(names) < len(rows) == 23
    assert (tmp_path / "profile.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


def test_more_than_a_row_group_is_written_in_several(
    states: list[State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "ROWS", 10)
    played(states, tmp_path / "profile", Engine()).write(tmp_path / "profile.parquet", [])
    file = pq.ParquetFile(tmp_path / "profile.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [10, 10, 3]


def test_a_damaged_shard_is_put_aside_and_sampled_again(states: list[State], tmp_path: Path) -> None:
    whole = dict(played(states, tmp_path, Engine()))
    shard = tmp_path / "shard-00002.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 0xFF
    shard.write_bytes(bytes(data[: len(data) // 2]))
    engine = Engine()
    assert dict(played(states, tmp_path, engine)) == whole and engine.asked == 5 * K
    assert shard.with_suffix(".damaged").exists() and not shard.exists()


def test_rows_of_other_states_are_not_among_the_profiles(states: list[State], tmp_path: Path) -> None:
    played(states, tmp_path, Engine())
    found = Profiles(tmp_path, chosen(states, (2, 8)))
    assert list(found) == ["d2#t0", "d8#t0"] and len(found) == 2
    assert "d3#t0" not in found and found.get("d3#t0") is None


def test_episodes_of_earlier_shards_are_not_kept(states: list[State], tmp_path: Path) -> None:
    player = Player(Engine(), HouseholdEnv(), Chat(), Sampling(), max_turns=1)
    profile(player, states, K, tmp_path, "key")
    assert not player.episodes.kept and not player.verdicts.kept


def test_a_look_into_thousands_of_shards_costs_no_more_than_into_few(states: list[State], tmp_path: Path) -> None:
    """A million trajectories have six thousand: looks that went through all of them took an hour."""
    found = played(states, tmp_path, Engine())
    right = dict(found)
    found._starts += [len(states)] * 100_000  # shards without rows behind the last
    began = time.process_time()
    for _ in range(100):
        assert dict(found) == right
    assert time.process_time() - began < 2


def test_what_a_profile_cost_is_known_to_a_start_that_samples_nothing(states: list[State], tmp_path: Path) -> None:
    assert profile_costs(tmp_path) == {}
    with pytest.raises(KeyboardInterrupt):
        played(states, tmp_path / "profile", Engine(fail_after=3))
    played(states, tmp_path / "profile", Engine())
    played(states, tmp_path / "profile-1", Engine())
    found = profile_costs(tmp_path)
    assert found["profile_turns"] == found["profile_tokens"] == 2 * 23 * K  # an action is one token here
    assert found["profile_cpu_seconds"] is not None and found["profile_cpu_seconds"] > 0
    played(states, tmp_path / "profile", Engine(fail_after=0))
    assert profile_costs(tmp_path) == found


def test_shards_of_older_versions_are_read_and_their_cost_is_not_known(states: list[State], tmp_path: Path) -> None:
    whole = dict(played(states, tmp_path / "profile", Engine()))
    for shard in (tmp_path / "profile").iterdir():
        pq.write_table(pq.read_table(shard).replace_schema_metadata(None), shard)
    assert dict(played(states, tmp_path / "profile", Engine(fail_after=0))) == whole
    cost = profile_costs(tmp_path)
    assert cost == {"profile_turns": 23 * K, "profile_tokens": None, "profile_cpu_seconds": None}


def test_a_shard_of_another_policy_is_not_read_and_was_paid_for(states: list[State], tmp_path: Path) -> None:
    """A run that begins again without its checkpoints may profile at another iteration than before."""
    with pytest.raises(KeyboardInterrupt):
        played(states, tmp_path / "profile-1", Engine(fail_after=3))
    later = Engine()
    later.version = 7
    found = played(states, tmp_path / "profile-1", later)
    assert later.asked == 23 * K and len(found) == 23
    again = Engine(fail_after=0)
    again.version = 7
    assert dict(played(states, tmp_path / "profile-1", again)) == dict(found)
    assert profile_costs(tmp_path)["profile_turns"] == (15 + 23) * K


def test_the_engine_is_told_to_forget_between_two_shards(states: list[State], tmp_path: Path) -> None:
    player, told = Player(Engine(), HouseholdEnv(), Chat(), Sampling(), max_turns=1), []
    profile(player, states, K, tmp_path, "key", afresh=lambda: told.append(len(list(tmp_path.glob("shard-*")))))
    assert told == [1, 2, 3, 4]


def test_pass_rates_are_profiles_that_cost_nothing_and_other_states_are_sampled(
    states: list[State], tmp_path: Path
) -> None:
    some = [replace(s, pivot=Pivot(i % 3, 8)) if i % 2 else s for i, s in enumerate(states)]
    some[0] = replace(some[0], pivot=Pivot())  # a row without a pass rate
    engine = Engine()
    player = Player(engine, HouseholdEnv(), Chat(), Sampling(), max_turns=1)
    counted: list[int] = []
    found = profile(player, some, K, tmp_path / "profile", "key", counted.append, rated=True)
    assert engine.asked == 12 * K and len(found) == 23 == sum(counted)
    for place, state in enumerate(some):
        one = found[state.id]
        if place % 2:
            assert one.mean == (place % 3) / 8 and len(one.functional) == 8 and one.strict == ()
        else:
            assert len(one.functional) == len(one.strict) == K
    paid = profile_costs(tmp_path)
    assert paid["profile_turns"] == 12 * K
    found.write(tmp_path / "profile.parquet", Pivots(k=K, keep="mixed").select(some, found))
    table = pq.read_table(tmp_path / "profile.parquet")
    assert len(table) == 23 and table.schema.field("strict").type == pa.list_(pa.float64())
    again = profile(Player(Engine(fail_after=0), HouseholdEnv(), Chat(), Sampling(), max_turns=1), some, K,
                    tmp_path / "profile", "key", rated=True)  # fmt: skip
    assert dict(again) == dict(found)


def test_pass_rates_are_not_read_unless_they_are_wanted(states: list[State], tmp_path: Path) -> None:
    engine = Engine()
    rated = [replace(state, pivot=Pivot(1, 8)) for state in states]
    played(rated, tmp_path, engine)
    assert engine.asked == 23 * K
