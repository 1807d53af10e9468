"""Finds the rollouts of a recorded tree (docs/metrics.md, "rollouts/train.jsonl") as paths from its root to its leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def paths_of(turns: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Returns, for each leaf of a recorded rollout tree, the indices of the turns from the root to the leaf.

    Raises:
        ValueError: a turn comes before its parent.
    """
    parents = {turn["parent"] for turn in turns}
    return [_path(turns, leaf) for leaf in range(len(turns)) if leaf not in parents]


def _path(turns: Sequence[Mapping[str, Any]], leaf: int) -> list[int]:
    path = []
    while leaf >= 0:
        path.append(leaf)
        if not turns[leaf]["parent"] < leaf:
            raise ValueError(
                f"turn {leaf} has turn {turns[leaf]['parent']} as its parent, but a parent must come before its turn"
            )
        leaf = turns[leaf]["parent"]
    return path[::-1]
