"""Computes the costs of a run: turns, tokens, CPU seconds, seconds of each phase, and faults of the environment.

Each file (shard) of a profile stores the cost of its samples for a resumed run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_KEY = b"turnwise"  # key of the costs in the metadata of a shard's Parquet schema


def with_facts(table: pa.Table, **facts: float) -> pa.Table:
    """Returns ``table`` with ``facts`` added as metadata, for example the costs of the samples in the table."""
    return table.replace_schema_metadata({_KEY: json.dumps(facts).encode()})


def facts_of(schema: pa.Schema) -> Mapping[str, Any]:
    """Returns the facts that :func:`with_facts` added to the table with this schema. The result is empty for shards
    that older versions of the project wrote.
    """
    return json.loads((schema.metadata or {}).get(_KEY, b"{}"))


def run_costs(
    counters: Mapping[str, float], phases: Mapping[str, float], folder: Path, lost: int = 0
) -> dict[str, Any]:
    """Returns the run's turns, tokens, CPU seconds, faults and seconds, as entries of ``result.json``.

    Args:
        counters: the recorder's counters, over all starts of the run.
        phases: seconds of each phase since the last start of the run.
        folder: the run's folder.
        lost: number of episodes that are missing in the evaluations before and after training.
    """
    seconds = {name.replace(" ", "_"): round(value, 2) for name, value in phases.items()}
    seconds.pop("train", None)  # replaced below by the times of rollouts and updates over all starts
    seconds |= {"rollouts": round(counters["rollout_seconds"], 2), "updates": round(counters["update_seconds"], 2)}
    return {
        "rollout_turns": int(counters["turns"]),
        "rollout_tokens": int(counters["tokens"]),
        "cpu_seconds": round(counters["cpu_seconds"], 2),
        **profile_costs(folder),
        "faults": {"lost": int(counters["faults"]), "retries": int(counters["retries"]), "evaluations": lost},
        "seconds": seconds,
    }


def profile_costs(folder: Path) -> dict[str, float | None]:
    """Returns ``profile_turns``, ``profile_tokens`` and ``profile_cpu_seconds`` of all profiles in a run's folder.

    Each sample of a profile is one turn. The CPU time is the time of the first process. A value is None if some shard
    lacks this value. The result is empty if there is no shard. Samples that were not yet written when the process was
    killed are not counted.
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
    """Returns the costs of one shard. If the shard does not store the number of turns, the samples are counted."""
    cost: dict[str, Any] = dict.fromkeys(("turns", "tokens", "cpu_seconds"))
    try:
        cost |= facts_of(pq.read_schema(shard))
        if cost["turns"] is None:
            rewards = pq.read_table(shard, columns=["rewards"])["rewards"]
            cost["turns"] = pc.sum(pc.list_value_length(rewards)).as_py()
    except (pa.ArrowException, OSError, ValueError):
        pass
    return cost
