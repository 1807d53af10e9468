"""Reads recorded groups of rollouts, those of runs without a gate, and of runs with and without one side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.errors import InputError
from turnwise.methods.gate import mixed_probability, prefixes
from turnwise.methods.selective import SIGNALS
from turnwise.methods.states import STD_TOLERANCE
from turnwise.runs.json_lines import checked_lines
from turnwise_study.gates.statistics import Row, cut_counts, intervals

LABELS = ("all_succeed", "mixed", "all_fail")
KNOWN = "rewards_known"  # name of a baseline signal, which is computed only from the rewards of finished rollouts


@dataclass(frozen=True, slots=True)
class Group:
    """One group of rollouts from one state."""

    rewards: tuple[float, ...]
    turns: float  # number of turns of all rollouts together
    signals: Mapping[int, Mapping[str, float]]  # K -> signal -> value
    tail: Mapping[int, float]  # K -> number of turns of all rollouts after step K
    kind: str | None = None  # kind of the task
    iteration: int = 0  # training iteration in which the group was sampled
    # K -> signal -> value that a running gate computed at step K
    looks: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        if float(np.std(self.rewards)) > STD_TOLERANCE:
            return "mixed"
        return "all_succeed" if float(np.mean(self.rewards)) > STD_TOLERANCE else "all_fail"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A set of N recorded groups with their common settings."""

    groups: tuple[Group, ...]
    horizon: int  # T_max in turns
    steps: tuple[int, ...]  # values of K at which signals are known, ascending
    left_out: Mapping[str, int] = field(default_factory=dict)  # reason -> number of groups that were left out

    @property
    def uniform(self) -> np.ndarray:
        """(N,) bool: whether all rewards of a group are equal (zero variance). A gate should detect these groups."""
        return np.sqrt(self.variances) <= STD_TOLERANCE

    @property
    def variances(self) -> np.ndarray:
        """(N,) population variances of the rewards."""
        return np.array([float(np.var(group.rewards)) for group in self.groups])

    @property
    def turns(self) -> np.ndarray:
        return np.array([group.turns for group in self.groups], dtype=float)

    @property
    def energies(self) -> np.ndarray:
        """(N,) squared L2 norm of each group's GRPO advantages (r - mean) / std: the group size, or 0 for equal
        rewards.
        """
        return np.array([len(group.rewards) for group in self.groups], dtype=float) * ~self.uniform

    def values(self, step: int, signal: str) -> np.ndarray:
        return np.array([group.signals[step][signal] for group in self.groups])

    def tails(self, step: int) -> np.ndarray:
        return np.array([group.tail[step] for group in self.groups], dtype=float)

    def only(self, keep: Callable[[Group], bool]) -> Buffer:
        return replace(self, groups=tuple(filter(keep, self.groups)))


def read_recorded_groups(paths: Sequence[Path], steps: Sequence[int], horizon: int | None = None) -> Buffer:
    """Reads groups from files of recorded rollouts (docs/metrics.md, "rollouts/train.jsonl"), with the signals after K
    turns for each K in ``steps`` below the horizon T_max (None: the length of the longest rollout).

    A group is left out and counted in ``left_out`` if a gate stopped it, if it branches below its root, or if fewer
    than two of its rollouts have a reward.
    """
    left_out: Counter[str] = Counter()
    usable = []
    for path in paths:
        for place, row in checked_lines(path):
            try:
                rollouts_of = _rollouts_of_group(row)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise InputError(
                    f"{place}: this line is not a recorded rollout tree ({type(error).__name__}: {error}); give a file "
                    "that a run of train.py wrote to its folder rollouts/"
                ) from error
            if isinstance(rollouts_of, str):
                left_out[rollouts_of] += 1
            else:
                usable.append(rollouts_of)
    if not usable:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "the file is empty"
        raise InputError(
            f"{', '.join(map(str, paths))}: no recorded group can be used ({reasons}); a usable group has at least two "
            "rollouts with rewards, branches only at its root, and was not stopped by a gate"
        )
    longest = max(len(rollout) for rollouts, *_ in usable for rollout in rollouts)
    horizon = horizon or longest
    if longest > horizon:
        raise InputError(
            f"horizon={horizon}: a rollout in {paths[0]} has {longest} turns; set horizon to at least that"
        )
    usable_steps = tuple(step for step in sorted(set(steps)) if step < horizon)
    if not usable_steps:
        raise InputError(
            f"{paths[0]}: the longest rollout has {longest} turns, so a gate at step {min(steps)} or later saves no "
            "turns; give smaller values in steps=, or rollouts of whole episodes (method=grpo)"
        )
    return Buffer(tuple(_group(one, usable_steps) for one in usable), horizon, usable_steps, dict(left_out))


_Found = tuple[list[list[tuple[str, str]]], list[float], dict[int, dict[str, float]], str | None, int]


def _rollouts_of_group(row: Mapping[str, Any]) -> _Found | str:
    """The rollouts as pairs (action, observation) of each turn, their rewards, what a gate computed at each of its steps,
    the task's kind and the iteration; or why the group is left out.
    """
    turns = row["turns"]
    if row.get("stopped", False):
        return "stopped by a gate"
    if "total" not in row["rewards"]:
        return "without rewards"
    paths = paths_of_group(turns)
    if sum(map(len, paths)) != len(turns):
        return "branching below their root"
    rewards = row["rewards"]["total"]
    rewarded = [(path, float(r)) for path, r in zip(paths, rewards, strict=True) if r is not None]
    if len(rewarded) < 2:
        return "with fewer than two rewarded rollouts"
    rollouts = [[(turns[i]["text"], turns[i]["observation"]) for i in path] for path, _ in rewarded]
    looks = {int(look["step"]): dict(look["values"]) for look in row.get("looks", ())}
    kind, iteration = row.get("state", {}).get("type"), int(row.get("iteration", 0))
    return rollouts, [reward for _, reward in rewarded], looks, kind, iteration


def paths_of_group(turns: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Returns, for each leaf of a recorded rollout tree, the indices of the turns from the root to the leaf.

    Raises:
        ValueError: a turn comes before its parent.
    """
    parents = [turn["parent"] for turn in turns]
    if strange := [turn for turn, parent in enumerate(parents) if not parent < turn]:
        raise ValueError(f"turn {strange[0]} comes before its parent")
    paths = []
    for leaf in sorted(set(range(len(turns))) - set(parents)):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        paths.append(path[::-1])
    return paths


def _group(recorded: _Found, steps: Sequence[int]) -> Group:
    rollouts, rewards, values, kind, iteration = recorded
    actions, observations = ([[turn[side] for turn in rollout] for rollout in rollouts] for side in (0, 1))
    lengths = np.array([len(rollout) for rollout in rollouts])
    signals = {}
    for step in steps:
        at = prefixes(actions, observations, [bool(length <= step) for length in lengths], step)
        signals[step] = {name: signal(at) for name, signal in SIGNALS.items()}
    looks = {}
    for step, known in values.items():
        over = lengths <= step
        mixed = mixed_probability([reward if ended else 0.5 for reward, ended in zip(rewards, over, strict=True)])
        looks[step] = {**known, KNOWN: mixed}
    tail = {step: float(np.maximum(lengths - step, 0).sum()) for step in steps}
    return Group(tuple(rewards), float(lengths.sum()), signals, tail, kind, iteration, looks)


def recorded_group_files(path: Path) -> list[Path]:
    """The files of recorded rollouts at ``path``: a file, a run's folder, or a folder with a run for each seed. Old
    runs that ``fresh=true`` renamed are left out, and unfinished seeds if others are finished.
    """
    if not path.is_dir():
        return [path] if path.exists() else []
    if files := sorted((path / "rollouts").glob("*.jsonl")) or sorted(path.glob("*.jsonl")):
        return files
    seeds = [seed for seed in sorted(path.glob("seed*")) if ".old-" not in seed.name]
    finished = [seed for seed in seeds if (seed / "result.json").is_file()]
    return [file for seed in finished or seeds for file in sorted((seed / "rollouts").glob("*.jsonl"))]


GroupRow = Mapping[str, Any]
"""A recorded rollout tree, as in ``rollouts/train.jsonl`` (docs/metrics.md)."""


def saving_in_paired_groups(without: Path, gated: Path, resamples: int, seed: int) -> Row:
    """How much a gate saved, from runs without the gate and runs with it. Only groups that both arms recorded in
    iteration 0 are used, because the policies of both arms are still equal then.

    The arm without the gate shows how each group ends: a cut is correct if all rewards of the group there are equal.
    Groups with fewer than two rewards there are left out. ``saved_pct`` is in percent of turns, and
    ``tokens_saved_pct`` of tokens, if they are recorded. ``first_steps_pct`` is the percentage of groups whose actions
    and observations are equal in both arms up to the gate's decision, ``matched_pct`` that of the groups that the gate
    did not cut and that are equal up to the end.
    """
    arms = [_groups_of_first_iteration(path) for path in (without, gated)]
    shared = [key for key in arms[0] if key in arms[1]]
    if not shared:
        raise InputError(
            f"{gated}: no group of iteration 0 is also in {without}; run both arms with the same seed and states, and "
            "record all groups with rollout.recorded"
        )
    pairs = [(arms[0][key], arms[1][key]) for key in shared]
    rewards = [[reward for reward in free["rewards"].get("total", ()) if reward is not None] for free, _ in pairs]
    ended = [pair for pair, known in zip(pairs, rewards, strict=True) if len(known) > 1]
    cuts = np.array([bool(cut["stopped"]) for _, cut in ended])
    uniform = np.array([float(np.std(known)) <= STD_TOLERANCE for known in rewards if len(known) > 1])
    row: Row = {"unit": "turns", "measured": True, "groups": len(ended), "left_out": len(pairs) - len(ended)}
    recorded = all("tokens" in turn for pair in ended for arm in pair for turn in arm["turns"])
    for unit in ("", "tokens_") if recorded else ("",):
        spent = [
            np.array([sum(float(turn["tokens"]) if unit else 1.0 for turn in pair[arm]["turns"]) for pair in ended])
            for arm in (0, 1)
        ]
        (interval,) = intervals(saved_between, spent, resamples, seed)
        row |= {f"{unit}saved_pct": float(saved_between(*spent)[0]), f"{unit}ci95": interval}
        row |= {f"{unit}baseline": spent[0].sum(), f"{unit}gated": spent[1].sum()}
    first = [_same_groups(free, cut, max((look["step"] for look in cut["looks"]), default=0)) for free, cut in ended]
    whole = [_same_groups(free, cut, None) for free, cut in ended if not cut["stopped"]]
    row["first_steps_pct"] = 100 * float(np.mean(first))
    row["matched_pct"] = 100 * float(np.mean(whole)) if whole else None
    return row | cut_counts(cuts, uniform)


def _groups_of_first_iteration(path: Path) -> dict[tuple[str, str], GroupRow]:
    groups: dict[tuple[str, str], GroupRow] = {
        (str(file.relative_to(path)) if path.is_dir() else "", str(row["state"]["id"])): row
        for file in recorded_group_files(path)
        for _, row in checked_lines(file)
        if row.get("iteration") == 0
    }
    if not groups:
        raise InputError(
            f"{path}: there is no recorded group of iteration 0; give the folder that a run of train.py wrote"
        )
    return groups


def saved_between(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """By how many percent the sum over N groups falls: two inputs (..., N) -> (..., 1)."""
    return 100 * (1 - after.sum(-1) / before.sum(-1))[..., None]


def _same_groups(free: GroupRow, gated: GroupRow, steps: int | None) -> bool:
    sides = []
    for turns in (free["turns"], gated["turns"]):
        paths = sorted(
            paths_of_group(turns)
        )  # sorted by the index of the first turn, the order in which rollouts began
        sides.append([[(turns[i]["text"], turns[i]["observation"]) for i in path[:steps]] for path in paths])
    return bool(sides[0] == sides[1])
