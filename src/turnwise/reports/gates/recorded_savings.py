"""Computes from recorded groups how much a gate saves (tier 1 of the paper Selective Rollout). The saving is measured
if the groups were sampled both without and with the gate, and estimated if they were sampled only without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.errors import InputError
from turnwise.reports.gates.cut_counts import counts
from turnwise.reports.gates.recorded_groups import TOLERANCE, Buffer, recordings
from turnwise.reports.gates.resample import intervals
from turnwise.reports.recorded_paths import paths_of
from turnwise.runs.json_lines import checked_lines

Played = Mapping[str, Any]
"""A recorded rollout tree, as in ``rollouts/train.jsonl`` (docs/metrics.md)."""


def read_arms(without: Path, gated: Path, resamples: int, seed: int) -> dict[str, Any]:
    """Returns how much a gate saved, from two arms: runs without the gate, and runs with the gate. Only groups that
    both arms recorded in iteration 0 are used, because the policies of both arms are still equal then.

    The arm without the gate shows how each group ends. A cut is correct if all rewards of the group in that arm are
    equal. Groups that have fewer than two rollouts with a reward in that arm are left out. Percentages are from 0 to
    100. The 95 % intervals of savings come from a bootstrap over groups, and the intervals of precision and recall are
    Wilson's.

    Args:
        without, gated: files of recorded rollouts, run folders, or folders of the runs of several seeds.

    Returns:
        A mapping with ``saved_pct``, the saved turns in percent, and its interval ``ci95``; if tokens are recorded,
        ``tokens_saved_pct`` and ``tokens_ci95``; and ``cut``, ``tp``, ``fp``, ``precision`` and ``recall``.
        ``first_steps_pct`` is the percentage of groups whose actions and observations are equal in both arms up to the
        step of the gate's decision. ``matched_pct`` is the percentage of groups whose actions and observations are
        equal in both arms up to the end, among the groups that the gate did not cut.

    Raises:
        InputError: an arm has no groups, or the arms have no group in common.
    """
    arms = [_groups(path) for path in (without, gated)]
    shared = [key for key in arms[0] if key in arms[1]]
    if not shared:
        raise InputError(
            f"{gated}: no group of iteration 0 is also in {without}; run both arms with the same seed and states, and "
            "record all groups with rollout.recorded"
        )
    pairs = [(arms[0][key], arms[1][key]) for key in shared]
    ended = [(free, cut, rewards) for free, cut in pairs if len(rewards := _rewards(free)) > 1]
    left_out = len(pairs) - len(ended)
    cuts = np.array([bool(cut["stopped"]) for _, cut, _ in ended])
    uniform = np.array([float(np.std(rewards)) <= TOLERANCE for _, _, rewards in ended])
    found: dict[str, Any] = {"unit": "turns", "measured": True, "groups": len(ended), "left_out": left_out}
    turns = _column(ended, lambda turn: 1.0)
    found |= _saved(turns, resamples, seed, "saved_pct", "ci95") | {"baseline": turns[0].sum(), "gated": turns[1].sum()}
    if all("tokens" in turn for group in ended for arm in group[:2] for turn in arm["turns"]):
        tokens = _column(ended, lambda turn: float(turn["tokens"]))
        found |= _saved(tokens, resamples, seed, "tokens_saved_pct", "tokens_ci95")
        found |= {"tokens_baseline": tokens[0].sum(), "tokens_gated": tokens[1].sum()}
    first = [_same(free, cut, max((look["step"] for look in cut["looks"]), default=0)) for free, cut, _ in ended]
    whole = [_same(free, cut, None) for free, cut, _ in ended if not cut["stopped"]]
    found["first_steps_pct"] = 100 * float(np.mean(first))
    found["matched_pct"] = 100 * float(np.mean(whole)) if whole else None
    return found | counts(cuts, uniform)


def _groups(path: Path) -> dict[tuple[str, str], Played]:
    """Returns (name of the file, id of the state) -> recorded rollout tree, for the trees of iteration 0."""
    files = recordings(path)
    found: dict[tuple[str, str], Played] = {
        (str(file.relative_to(path)) if path.is_dir() else "", str(row["state"]["id"])): row
        for file in files
        for _, row in checked_lines(file)
        if row.get("iteration") == 0
    }
    if not found:
        raise InputError(
            f"{path}: there is no recorded group of iteration 0; give the folder that a run of train.py wrote"
        )
    return found


def _rewards(row: Played) -> list[float]:
    return [reward for reward in row["rewards"].get("total", ()) if reward is not None]


def _column(groups: Sequence[tuple[Played, Played, Any]], cost: Callable[[Played], float]) -> list[np.ndarray]:
    """Returns one array (N,) for each arm, with the sum of ``cost`` over the turns of each group."""
    return [np.array([sum(map(cost, group[arm]["turns"])) for group in groups]) for arm in (0, 1)]


def _saved(columns: Sequence[np.ndarray], resamples: int, seed: int, name: str, bounds: str) -> dict[str, Any]:
    (interval,) = intervals(saved_between, columns, resamples, seed)
    return {name: float(saved_between(*columns)[0]), bounds: interval}


def saved_between(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Returns by how many percent the sum over N groups falls from ``before`` to ``after``: (..., N) -> (..., 1)."""
    return 100 * (1 - after.sum(-1) / before.sum(-1))[..., None]


def _same(free: Played, gated: Played, steps: int | None) -> bool:
    """Returns whether all rollouts of a group are equal in both arms, in their first ``steps`` turns (None: in all)."""
    sides = []
    for turns in (free["turns"], gated["turns"]):
        paths = sorted(paths_of(turns))  # sorted by the index of the first turn, the order in which rollouts began
        sides.append([[(turns[i]["text"], turns[i]["observation"]) for i in path[:steps]] for path in paths])
    return bool(sides[0] == sides[1])


def replayed_savings(buffer: Buffer, cut: np.ndarray, k: int, resamples: int, seed: int) -> dict[str, Any]:
    """Estimates from groups that were sampled without a gate how much a gate would save (tier 1 of the paper): the
    turns after step ``k`` in the groups that the gate would cut, in percent of all turns.

    Args:
        cut: for each group, whether the gate would cut it.
    """
    columns = [buffer.tails(k) * cut, buffer.turns]
    (interval,) = intervals(_saved_of_total, columns, resamples, seed)
    return {"unit": "turns", "measured": False, "groups": len(buffer.groups), "k": k} | {
        "saved_pct": float(_saved_of_total(*columns)[0]),
        "ci95": interval,
        **counts(cut, buffer.uniform),
    }


def _saved_of_total(saved: np.ndarray, total: np.ndarray) -> np.ndarray:
    return 100 * (saved.sum(-1) / total.sum(-1))[..., None]
