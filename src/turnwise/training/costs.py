"""What a run has cost. Of profiles the metadata of their shards tell, so that a later start, which samples none, still knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_KEY = b"turnwise"  # of a shard's metadata


def with_facts(table: pa.Table, **facts: float) -> pa.Table:
    """The table with facts of how it came about."""
    return table.replace_schema_metadata({_KEY: json.dumps(facts).encode()})


def facts_of(schema: pa.Schema) -> Mapping[str, Any]:
    """The inverse of :func:`told`; empty where nothing was told, as in shards of older versions."""
    return json.loads((schema.metadata or {}).get(_KEY, b"{}"))


def run_costs(counters: Mapping[str, float], phases: Mapping[str, float], folder: Path) -> dict[str, Any]:
    """Turns, tokens, CPU seconds, faults and seconds of the run in ``folder``, as its result tells them.

    Args:
        counters: the recorder's, over all starts.
        phases: seconds of each phase of this start.
    """
    seconds = {name.replace(" ", "_"): round(value, 2) for name, value in phases.items()}
    seconds.pop("train", None)  # told apart below, over all starts of this run
    seconds |= {"rollouts": round(counters["rollout_seconds"], 2), "updates": round(counters["update_seconds"], 2)}
    return {
        "rollout_turns": int(counters["turns"]),
        "rollout_tokens": int(counters["tokens"]),
        "cpu_seconds": round(counters["cpu_seconds"], 2),
        **profile_costs(folder),
        "faults": {"lost": int(counters["faults"]), "retries": int(counters["retries"])},
        "seconds": seconds,
    }


def profile_costs(folder: Path) -> dict[str, float | None]:
    """``profile_turns``, ``profile_tokens`` and ``profile_cpu_seconds`` of all profiles of the run in ``folder``.

    Turns are the samples; CPU time is that of the first process. A shard that a kill left unfinished is in none of them. None
    where a shard does not tell; nothing at all where there is none.
    """
    shards = sorted(folder.glob("profile*/shard-*.parquet"))
    if not shards:
        return {}
    costs = [_cost(shard) for shard in shards]
    whole = {
        f"profile_{name}": None if any(cost[name] is None for cost in costs) else sum(cost[name] for cost in costs)
        for name in ("turns", "tokens", "cpu_seconds")
    }
    if whole["profile_cpu_seconds"] is not None:
        whole["profile_cpu_seconds"] = round(whole["profile_cpu_seconds"], 2)
    return whole


def _cost(shard: Path) -> dict[str, Any]:
    """Of one shard. Samples can be counted in any that can be read."""
    cost: dict[str, Any] = dict.fromkeys(("turns", "tokens", "cpu_seconds"))
    try:
        cost |= facts_of(pq.read_schema(shard))
        if cost["turns"] is None:
            rewards = pq.read_table(shard, columns=["rewards"])["rewards"]
            cost["turns"] = pc.sum(pc.list_value_length(rewards)).as_py()
    except (pa.ArrowException, OSError, ValueError):
        pass
    return cost
