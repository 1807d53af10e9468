"""Small buffers whose every number can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from turnwise.methods.selective import DISTANCE, SIGNALS, TERMINATION
from turnwise_study.gates.groups import Buffer, Group


def group_of(label: str, distances: dict[int, float], tails: dict[int, float], kind: str | None = None) -> Group:
    """A group of four rollouts of at most ten turns; signals other than d and tau are those of d."""
    rewards = {"mixed": (0.0, 1.0) * 2, "all_succeed": (1.0,) * 4, "all_fail": (0.0,) * 4}[label]
    signals = {
        k: dict.fromkeys(SIGNALS, d) | {DISTANCE: d, TERMINATION: 1 - tails[k] / (4 * (10 - k))}
        for k, d in distances.items()
    }
    return Group(rewards, 40.0, signals, tails, kind)


def buffer_of(rows: Sequence[tuple[Any, ...]], steps: tuple[int, ...] = (5,)) -> Buffer:
    """Rows of label, d at each step, tail at each step, and maybe a kind."""
    n = len(steps)
    groups = [
        group_of(
            row[0],
            dict(zip(steps, row[1 : 1 + n], strict=True)),
            dict(zip(steps, row[1 + n : 1 + 2 * n], strict=True)),
            row[1 + 2 * n] if len(row) > 1 + 2 * n else None,
        )
        for row in rows
    ]
    return Buffer(tuple(groups), 10, steps)


def tree_of(rollouts: list[str], rewards: list[float | None]) -> dict[str, Any]:
    """A recorded tree: one letter an action; turns stand round by round, as they were played."""
    turns: list[dict[str, Any]] = []
    last = dict.fromkeys(range(len(rollouts)), -1)
    for depth in range(max(map(len, rollouts))):
        for i, letters in enumerate(rollouts):
            if depth < len(letters):
                turns.append({"parent": last[i], "text": letters[depth], "observation": f"saw {letters[depth]}"})
                last[i] = len(turns) - 1
    parents = {turn["parent"] for turn in turns}
    leaves = [i for i in range(len(turns)) if i not in parents]
    order = sorted(range(len(rollouts)), key=lambda i: leaves.index(last[i]))
    return {"state": {"id": "s", "type": "look"}, "turns": turns, "rewards": {"total": [rewards[i] for i in order]}}


def written_to(folder: Path, rows: Sequence[Any]) -> Path:
    """A file of recorded rollouts; a text stands for a whole line."""
    path = folder / "train.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def tree() -> Callable[..., dict[str, Any]]:
    return tree_of


@pytest.fixture(scope="session")
def written() -> Callable[[Path, Sequence[Any]], Path]:
    return written_to


@pytest.fixture(scope="session")  # hypothesis calls a test many times on one fixture
def make_buffer() -> Callable[..., Buffer]:
    return buffer_of
