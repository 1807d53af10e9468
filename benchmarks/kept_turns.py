"""Counts, for PivotRL in the household, how many of the turns that its filter keeps demonstrate a mistake.

python benchmarks/kept_turns.py --run=outputs/pivotrl/tab4/full
python benchmarks/kept_turns.py --run=outputs/pivotrl/tab4/full/seed0

The script reads the profiles of finished runs and plays their demonstrations again. The environment's own verifier,
which knows the task, decides whether the demonstrated action and each sampled action make progress. The output has the
share of mistakes among the kept turns, the other turns with mixed samples, and the turns without signal, and the share
of samples that make progress but got no reward. The last line is one JSON object. The exit status is 2 if no run can be
read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from turnwise.config.schema import build
from turnwise.files import read_yaml
from turnwise_worlds.household.environment import HouseholdEnv, makes_progress

KINDS = ("kept", "mixed, not kept", "no signal")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a run, or a folder of runs of one row")
    folder = parser.parse_args(arguments).run
    runs = [path.parent for path in sorted(folder.rglob("profile.parquet"))]
    if not runs:
        print(f"{folder}: this folder contains no profile.parquet; give a run of method=pivotrl", file=sys.stderr)
        return 2
    counts: Counter[tuple[str, ...]] = Counter()
    for run in runs:
        env = build(OmegaConf.create(read_yaml(run / "config.yaml")), "env")
        if not isinstance(env, HouseholdEnv):
            print(
                f"{run}: the environment is {env.name}; only household has a verifier that knows the task",
                file=sys.stderr,
            )
            return 2
        counts.update(marks(env, pq.read_table(run / "profile.parquet").to_pylist()))
    show(found := shares(counts))
    print(json.dumps({"benchmark": "kept_turns", "runs": [str(run) for run in runs], **found}))
    return 0


def marks(env: HouseholdEnv, profile: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yields one tuple for each turn of a profile, and one for each of its samples.

    A turn gives (kind, "turn", "right" or "mistake"), a sample (kind, "paid" or "unpaid", "right" or "mistake").
    """
    turns: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in profile:
        turns[row["trajectory"]][row["turn"]] = row
    named = {name: name.split("/") for name in turns}  # split/seed of the tasks/number/quality/seed of the expert
    tasks = {
        (split, seed): env.tasks(split, 1 + max(int(words[2]) for words in named.values()), int(seed))
        for split, seed in {(words[0], words[1]) for words in named.values()}
    }
    for name, rows in turns.items():
        split, tasks_seed, number, quality, seed = named[name]
        task = tasks[split, tasks_seed][int(number)]
        session = env.reset(task)
        said = env.demonstrate(task, quality, int(seed)).messages  # type: ignore[arg-type]
        for turn, action in enumerate(m["content"] for m in said if m["role"] == "assistant"):
            if turn in rows:
                row = rows[turn]
                kind = KINDS[0] if row["kept"] else KINDS[1] if row["variance"] > 0 else KINDS[2]
                yield kind, "turn", _word(makes_progress(session, action))
                for sample, reward in zip(row["actions"], row["rewards"], strict=True):
                    yield kind, "paid" if reward > 0.5 else "unpaid", _word(makes_progress(session, sample))
            session.step(action)


def _word(right: bool) -> str:
    return "right" if right else "mistake"


def shares(counts: Counter[tuple[str, ...]]) -> dict[str, dict[str, float]]:
    """Returns for each kind the number of turns, and the percentages of mistakes and of unpaid right samples."""
    found = {}
    for kind in KINDS:
        turns = sum(counts[kind, "turn", word] for word in ("right", "mistake"))
        samples = sum(counts[kind, paid, word] for paid in ("paid", "unpaid") for word in ("right", "mistake"))
        found[kind] = {
            "turns": float(turns),
            "mistakes_pct": round(100 * counts[kind, "turn", "mistake"] / max(1, turns), 1),
            "right_unpaid_pct": round(100 * counts[kind, "unpaid", "right"] / max(1, samples), 1),
        }
    return found


def show(found: dict[str, dict[str, float]]) -> None:
    table = Table(title="What the demonstrations show at the turns of a profile", title_justify="left")
    for name in ("turns", "number", "the demonstrated action is a mistake, %", "samples that are right and unpaid, %"):
        table.add_column(name, justify="left" if name == "turns" else "right")
    for kind, row in found.items():
        table.add_row(kind, f"{row['turns']:,.0f}", str(row["mistakes_pct"]), str(row["right_unpaid_pct"]))
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
