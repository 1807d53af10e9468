"""Writes tasks.jsonl for the agent: ``python -m recipes.agent.tasks``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from turnwise_worlds.household import HouseholdEnv

COUNTS = {"train": 300, "seen": 64, "unseen": 64}  # split -> number of tasks that a run uses by default


def main() -> None:
    env = HouseholdEnv()
    rows = [
        {"id": task.id.rpartition("/")[2], "split": split, "chore": dataclasses.asdict(task)}
        for split, count in COUNTS.items()
        for task in env.tasks(split, count)
    ]
    path = Path(__file__).parent / "tasks.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    main()
