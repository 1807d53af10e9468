"""Profiles states: samples K actions at every expert turn and stores the verdicts on the actions (PivotRL Eq. 4).

The actions are sampled with the base policy or with a later policy. Results are written to several files (shards), so
that an interrupted profile can be resumed. The results stay on disk, because there may be millions.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from turnwise.algo.allocators.allocator import Uniform
from turnwise.algo.gates.rules import Never
from turnwise.algo.states.lazy import finder, ids_of
from turnwise.algo.states.pivots import Profile
from turnwise.files import atomic_write
from turnwise.rollouts.player import Player
from turnwise.training.costs import facts_of, with_facts
from turnwise.training.distributed import DistributedContext
from turnwise.types import State

logger = logging.getLogger(__name__)

SHARD = 4096  # number of samples that are drawn together and written as a shard; large shards are faster
ROWS = 65536  # about the number of states in a row group of the final Parquet file
_NUMBERS = pa.list_(pa.float64())
_SHARD_SCHEMA = pa.schema(
    {
        "state_id": pa.string(),
        "trajectory": pa.string(),
        "turn": pa.int64(),
        "rewards": _NUMBERS,
        "strict": _NUMBERS,
        "actions": pa.list_(pa.string()),
    }
)
_ABSENT = -1


def profile(
    player: Player,
    states: Sequence[State],
    k: int,
    folder: Path,
    key: object,
    on_done: Callable[[int], None] | None = None,
    distributed: DistributedContext | None = None,
    afresh: Callable[[], None] | None = None,
    rated: bool = False,
) -> Profiles:
    """Profiles each state and returns the profiles. The shards and their costs are stored in ``folder``.

    States in a shard of the folder are not sampled again. Shards of another version of the policy are ignored, because
    a restarted run may profile at another iteration than before.

    Args:
        player: samples single actions, with the policy that is profiled.
        states: the states, in the order of their trajectories.
        k: number of samples for each state.
        folder: the folder of the shards.
        key: the key from which the seeds of the random draws are derived.
        on_done: is called with the number of states that have just been profiled.
        distributed: the processes of the run. Each process samples a part of the states. The first process writes the
            shards.
        afresh: function that empties the engine's cache. It is called between two shards, so that the last digits of
            log-probs do not depend on whether the process was killed between the shards.
        rated: whether states with a pass rate (:class:`turnwise.types.Pivot`) are not sampled. The pass rate is then
            used as the profile.
    """
    distributed = distributed or DistributedContext()
    version = distributed.broadcast(player.engine.version)
    profiles = Profiles(folder, states, version)
    if rated:
        _take_rates(profiles, states, version, distributed.first)
    if len(profiles) and on_done is not None:
        on_done(len(profiles))
    missing = profiles.missing()
    step = max(1, SHARD // k)
    for start in range(0, len(missing), step):
        if start and afresh is not None:
            afresh()
        part = [states[int(place)] for place in missing[start : start + step]]
        turns_before, tokens_before, cpu_began = player.tally.turns, player.tally.tokens, time.process_time()
        trees = player.play(distributed.share(part), Uniform(k), Never(), key)
        fresh = []
        for tree in trees:
            if turns := [turn for i, turn in enumerate(tree.turns) if i not in tree.invalid]:
                functional, strict = ([turn.info[name] for turn in turns] for name in ("functional", "strict"))
                fresh.append(_row(tree.state, functional, strict, [turn.text for turn in turns]))
        rows = distributed.gather(fresh)  # waits until all processes have read the earlier shards
        cost = {"turns": player.tally.turns - turns_before, "tokens": player.tally.tokens - tokens_before}
        facts = {**distributed.add(cost), "cpu_seconds": time.process_time() - cpu_began, "version": version}
        profiles.add(rows, facts, writes=distributed.first)
        player.forget()  # the states of a trajectory are neighbours, so later shards do not need the cached episodes
        if on_done is not None:
            on_done(len(part))
    distributed.barrier()  # the other processes read the last shard after the first process has written it
    return profiles


def _take_rates(profiles: Profiles, states: Sequence[State], version: int, writes: bool) -> None:
    """Adds profiles, without sampling, for states that have a pass rate and no profile."""
    missing = profiles.missing()
    for start in range(0, len(missing), SHARD):
        part = (states[int(place)] for place in missing[start : start + SHARD])
        rows = [
            _row(state, [1.0] * pivot.passed + [0.0] * (pivot.total - pivot.passed), [], [])
            for state in part
            if (pivot := state.pivot) and pivot.total
        ]
        profiles.add(rows, {"turns": 0, "tokens": 0, "cpu_seconds": 0.0, "version": version}, writes)


def _row(state: State, rewards: list[float], strict: list[float], actions: list[str]) -> dict[str, Any]:
    of_state = {"state_id": state.id, "trajectory": state.trajectory, "turn": state.turn}
    return {**of_state, "rewards": rewards, "strict": strict, "actions": actions}


class Profiles(Mapping[str, Profile]):
    """A mapping from state id to profile for ``states``, which reads the profiles from the shards in ``folder``.

    Memory is needed for one shard, and 8 bytes for each state. Rows of other states and shards of another ``version``
    of the policy are ignored, but stay in the files.
    """

    def __init__(self, folder: Path, states: Sequence[State], version: int = 0) -> None:
        self.folder, self.states = folder, states
        folder.mkdir(parents=True, exist_ok=True)
        self._place = finder(states)
        self._shards: list[Path] = []
        self._starts = [0]  # number of rows before each shard; the last entry is the number of all rows
        self._row_S = np.full(len(states), _ABSENT, np.int64)
        self._loaded: tuple[int, list[Profile]] = (_ABSENT, [])
        found = sorted(folder.glob("shard-*.parquet"), key=_number)
        self._next = _number(found[-1]) + 1 if found else 0
        for shard in found:
            try:
                table = pq.read_table(shard)  # reads all columns, to find damage in every column
                made_by, names = facts_of(table.schema).get("version", version), table["state_id"].to_pylist()
            except (pa.ArrowException, OSError, ValueError):
                shard.replace(shard.with_suffix(".damaged"))
                logger.warning("%s is damaged; its states are profiled again", shard)
            else:
                if made_by == version:
                    self._index(shard, names)

    def missing(self) -> np.ndarray:
        """Returns the indices of the states without a profile, in ascending order."""
        return np.flatnonzero(self._row_S == _ABSENT)

    def add(self, rows: list[dict[str, Any]], facts: Mapping[str, float], writes: bool = True) -> None:
        """Adds rows as a new shard, with the shard's costs ``facts`` (``training.costs``). If ``writes`` is False,
        another process writes the file of the shard.
        """
        if not rows:
            return
        path = self.folder / f"shard-{self._next:05d}.parquet"
        self._next += 1
        if writes:
            with atomic_write(path) as part:
                pq.write_table(with_facts(pa.Table.from_pylist(rows, _SHARD_SCHEMA), **facts), part)
        self._index(path, [row["state_id"] for row in rows])

    def write(self, path: Path, kept: Sequence[State]) -> None:
        """Writes all profiles to one Parquet file, whose column ``kept`` is true for the states in ``kept``."""
        kept_S = np.zeros(len(self.states), bool)
        for name in ids_of(kept):
            kept_S[self._place(name)] = True
        if not self._shards:
            return
        with atomic_write(path) as part:
            writer = None
            for table in self._tables(kept_S):
                writer = writer or pq.ParquetWriter(part, table.schema)
                writer.write_table(table)
            assert writer is not None
            writer.close()

    def _tables(self, kept_S: np.ndarray) -> Iterator[pa.Table]:
        """Yields the rows of all shards in tables of about ``ROWS`` rows, with the columns mean, variance and kept."""
        parts: list[pa.Table] = []
        for shard in self._shards:
            table = pq.read_table(shard)
            found = _profiles(table)
            places = [self._place(name) for name in table["state_id"].to_pylist()]
            columns = {
                "mean": [one.mean for one in found],
                "variance": [one.variance for one in found],
                "kept": [place is not None and bool(kept_S[place]) for place in places],
            }
            for name, values in columns.items():
                table = table.append_column(name, pa.array(values))
            parts.append(table.cast(pa.schema([_plain(field) for field in table.schema])))
            if sum(map(len, parts)) >= ROWS:
                yield pa.concat_tables(parts).combine_chunks()
                parts = []
        if parts:
            yield pa.concat_tables(parts).combine_chunks()

    # -- look-up by state id -------------------------------------------------------------------------------------------

    def __getitem__(self, state_id: str) -> Profile:
        place = self._place(state_id)
        row = _ABSENT if place is None else int(self._row_S[place])
        if row == _ABSENT:
            raise KeyError(state_id)
        number = bisect_right(self._starts, row) - 1
        return self._load(number)[row - self._starts[number]]

    def __contains__(self, state_id: object) -> bool:
        place = self._place(state_id) if isinstance(state_id, str) else None
        return place is not None and bool(self._row_S[place] != _ABSENT)

    def __iter__(self) -> Iterator[str]:
        for name, row in zip(ids_of(self.states), self._row_S):
            if row != _ABSENT:
                yield name

    def __len__(self) -> int:
        return int((self._row_S != _ABSENT).sum())

    def _load(self, number: int) -> list[Profile]:
        if self._loaded[0] != number:
            self._loaded = (number, _profiles(pq.read_table(self._shards[number], columns=["rewards", "strict"])))
        return self._loaded[1]

    def _index(self, shard: Path, names: Sequence[str]) -> None:
        for row, name in enumerate(names, start=self._starts[-1]):
            place = self._place(name)
            if place is not None:
                self._row_S[place] = row
        self._shards.append(shard)
        self._starts.append(self._starts[-1] + len(names))


def _profiles(table: pa.Table) -> list[Profile]:
    rows = zip(table["rewards"].to_pylist(), table["strict"].to_pylist(), strict=True)
    return [Profile(tuple(rewards), tuple(strict)) for rewards, strict in rows]


def _plain(column: pa.Field) -> pa.Field:
    """Returns the schema field of a column with its type before Parquet renamed the items of lists."""
    return column.with_type(pa.list_(column.type.value_type)) if pa.types.is_list(column.type) else column


def _number(shard: Path) -> int:
    return int(shard.stem.removeprefix("shard-"))
