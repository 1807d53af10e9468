"""The offline profile: K samples of every expert turn under the frozen base policy (PivotRL Eq. 4).

All turns of a trajectory hang off its spine, which the engine computes once. Results are appended shard by shard, so an
interrupted profile goes on where it stopped, and a finished one is read back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from turnwise.allocators.uniform import Uniform
from turnwise.files import whole
from turnwise.gates.never import Never
from turnwise.rollouts.play import Player
from turnwise.states.pivots import Profile
from turnwise.training.ranks import Ranks
from turnwise.types import State

logger = logging.getLogger(__name__)

SHARD = 2048  # samples played and written together


def profile(
    player: Player,
    states: Sequence[State],
    k: int,
    folder: Path,
    key: object,
    on_done: Callable[[int], None] | None = None,
    ranks: Ranks | None = None,
) -> dict[str, Profile]:
    """Profile of each state by its id; ``folder`` keeps the shards.

    Args:
        player: one turn a state, under the base policy.
        states: in the order of their trajectories.
        k: samples a state.
        key: seeds the draws.
        on_done: told how many states have just been profiled.
        ranks: who plays a share of it; the first writes.
    """
    ranks = ranks or Ranks()
    folder.mkdir(parents=True, exist_ok=True)
    rows = _read(folder)
    known = {row["state_id"] for row in rows}
    if known and on_done is not None:
        on_done(len(known))
    missing = [state for state in states if state.id not in known]
    step = max(1, SHARD // k)
    for start in range(0, len(missing), step):
        part = missing[start : start + step]
        trees = player.play(ranks.share(part), Uniform(k), Never(), key)
        fresh = []
        for tree in trees:
            turns = [turn for i, turn in enumerate(tree.turns) if i not in tree.invalid]
            if not turns:
                continue
            fresh.append(
                {
                    "state_id": tree.state.id,
                    "trajectory": tree.state.trajectory,
                    "turn": tree.state.turn,
                    "rewards": [turn.info["functional"] for turn in turns],
                    "strict": [turn.info["strict"] for turn in turns],
                    "actions": [turn.text for turn in turns],
                }
            )
        fresh = ranks.gather(fresh)  # after which all have read what lay in the folder
        if ranks.first:
            _append(folder, fresh)
        rows += fresh
        if on_done is not None:
            on_done(len(part))
    return {row["state_id"]: Profile(tuple(row["rewards"]), tuple(row["strict"])) for row in rows}


def write_profile(folder: Path, path: Path, kept: Iterable[str]) -> None:
    """One Parquet file of the whole profile, for reports and for the next run."""
    chosen = set(kept)
    rows = []
    for row in _read(folder):
        found = Profile(tuple(row["rewards"]), tuple(row["strict"]))
        rows.append({**row, "mean": found.mean, "variance": found.variance, "kept": row["state_id"] in chosen})
    if rows:
        with whole(path) as part:
            pq.write_table(pa.Table.from_pylist(rows), part)


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*.parquet"))


def _read(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for shard in _shards(folder):
        try:
            rows += pq.read_table(shard).to_pylist()
        except (pa.ArrowException, OSError, ValueError):
            shard.replace(shard.with_suffix(".damaged"))
            logger.warning("%s is damaged; its states are profiled again", shard)
    return rows


def _append(folder: Path, rows: list[dict[str, Any]]) -> None:
    """A shard appears whole or not at all."""
    if not rows:
        return
    path = folder / f"shard-{max((int(shard.stem[6:]) for shard in _shards(folder)), default=-1) + 1:05d}.parquet"
    with whole(path) as part:
        pq.write_table(pa.Table.from_pylist(rows), part)
