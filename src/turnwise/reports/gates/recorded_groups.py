"""Reads recorded groups of rollouts, each of which ran to its end, from the ``rollouts/*.jsonl`` of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from turnwise.algo.gates.gate import SIGNALS, prefixes
from turnwise.algo.gates.rules import mixed_probability
from turnwise.errors import InputError
from turnwise.reports.recorded_paths import paths_of
from turnwise.runs.json_lines import checked_lines

Label = Literal["all_fail", "mixed", "all_succeed"]
LABELS: tuple[Label, ...] = ("all_succeed", "mixed", "all_fail")
# Name of a baseline signal, which is computed only from the rewards of finished rollouts.
KNOWN = "rewards_known"
TOLERANCE = 1e-6  # rewards with at most this std count as equal, as in turnwise.algo.advantages.group


@dataclass(frozen=True, slots=True)
class Group:
    """One group of rollouts from one state."""

    id: str
    label: Label
    variance: float  # population variance of the group's rewards
    size: int  # number of rollouts
    turns: float  # number of turns of all rollouts together
    signals: Mapping[int, Mapping[str, float]]  # K -> signal -> value
    tail: Mapping[int, float]  # K -> number of turns of all rollouts after step K
    kind: str | None = None  # kind of the task
    iteration: int = 0  # training iteration in which the group was sampled
    # K -> signal -> value that a running gate computed at step K
    looks: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A set of recorded groups with their common settings."""

    groups: tuple[Group, ...]
    horizon: int  # T_max in turns
    steps: tuple[int, ...]  # values of K at which signals are known, ascending
    left_out: Mapping[str, int] = field(default_factory=dict)  # reason -> number of groups that were left out

    @property
    def uniform(self) -> np.ndarray:
        """(N,) bool: whether all rewards of a group are equal (zero variance). A gate should detect these groups."""
        return np.sqrt(self.variances) <= TOLERANCE

    @property
    def variances(self) -> np.ndarray:
        return np.array([group.variance for group in self.groups])

    @property
    def turns(self) -> np.ndarray:
        return np.array([group.turns for group in self.groups], dtype=float)

    @property
    def energies(self) -> np.ndarray:
        """(N,) squared L2 norm of each group's GRPO advantages (r - mean) / std: the group size, or 0 for equal
        rewards.
        """
        return np.array([group.size for group in self.groups], dtype=float) * ~self.uniform

    def values(self, step: int, signal: str) -> np.ndarray:
        return np.array([group.signals[step][signal] for group in self.groups])

    def tails(self, step: int) -> np.ndarray:
        return np.array([group.tail[step] for group in self.groups], dtype=float)

    def only(self, keep: Sequence[int] | np.ndarray) -> Buffer:
        return replace(self, groups=tuple(self.groups[i] for i in keep))


def label_of(rewards: Sequence[float]) -> Label:
    """Returns ``mixed`` if the rewards differ, otherwise ``all_succeed`` (rewards above 0) or ``all_fail``."""
    if float(np.std(rewards)) > TOLERANCE:
        return "mixed"
    return "all_succeed" if float(np.mean(rewards)) > TOLERANCE else "all_fail"


def read_recorded(paths: Sequence[Path], steps: Sequence[int], horizon: int | None = None) -> Buffer:
    """Reads groups from files of recorded rollouts (docs/metrics.md, "rollouts/train.jsonl").

    A group is left out and counted in ``left_out`` if a gate stopped it, if it branches below its root, or if fewer
    than two of its rollouts have a reward.

    Args:
        paths: files of JSON lines, with one rollout tree per line.
        steps: values of K, the numbers of turns after which signals are computed. Values at or beyond the horizon are
            ignored.
        horizon: largest possible length of a rollout in turns (T_max). None: the length of the longest rollout.

    Raises:
        InputError: a file is missing, a line is not a recorded rollout tree, no group is left, a rollout is longer than
            ``horizon``, or no rollout lasts beyond the first step.
    """
    left_out: Counter[str] = Counter()
    found = []
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: this file does not exist; give a run's rollouts/train.jsonl")
        for place, row in checked_lines(path):
            with _recorded(place):
                group = _paths(row)
            if isinstance(group, str):
                left_out[group] += 1
            else:
                found.append((place, row, *group))
    if not found:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "the file is empty"
        raise InputError(
            f"{', '.join(map(str, paths))}: no recorded group can be used ({reasons}); a usable group has at least two "
            "rollouts with rewards, branches only at its root, and was not stopped by a gate"
        )
    longest = max(len(rollout) for _, _, rollouts, _ in found for rollout in rollouts)
    horizon = horizon or longest
    if longest > horizon:
        raise InputError(
            f"horizon={horizon}: a rollout in {paths[0]} has {longest} turns; set horizon to at least this number"
        )
    kept = tuple(step for step in sorted(set(steps)) if step < horizon)
    if not kept:
        raise InputError(
            f"{paths[0]}: the longest rollout has {longest} turns, so a gate at step {min(steps)} or later saves no "
            "turns; give smaller values in steps=, or rollouts of whole episodes (method=grpo)"
        )
    groups = []
    for place, row, rollouts, rewards in found:
        with _recorded(place):
            groups.append(_group(place, row, rollouts, rewards, kept))
    return Buffer(tuple(groups), horizon, kept, dict(left_out))


@contextmanager
def _recorded(place: str) -> Iterator[None]:
    """Converts an error in the ``with`` block into an InputError that names the line of the rollout tree."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"{place}: this line is not a recorded rollout tree ({type(error).__name__}: {error}); give a file that a "
            "run of train.py wrote to its folder rollouts/"
        ) from error


def _paths(row: Mapping[str, Any]) -> tuple[list[list[Mapping[str, Any]]], list[float]] | str:
    """Returns the rollouts of a recorded rollout tree and their rewards, or the reason why the tree is left out."""
    turns = row["turns"]
    if row.get("stopped", False):
        return "stopped by a gate"
    if "total" not in row["rewards"]:
        return "without rewards"
    paths = [[turns[i] for i in path] for path in paths_of(turns)]
    if sum(map(len, paths)) != len(turns):
        return "branching below their root"
    rewarded = [(p, float(r)) for p, r in zip(paths, row["rewards"]["total"], strict=True) if r is not None]
    if len(rewarded) < 2:
        return "with fewer than two rewarded rollouts"
    return [p for p, _ in rewarded], [r for _, r in rewarded]


def _group(
    place: str,
    row: Mapping[str, Any],
    rollouts: Sequence[Sequence[Mapping[str, Any]]],
    rewards: Sequence[float],
    steps: Sequence[int],
) -> Group:
    actions = [[turn["text"] for turn in rollout] for rollout in rollouts]
    observations = [[turn["observation"] for turn in rollout] for rollout in rollouts]
    lengths = np.array([len(rollout) for rollout in rollouts])
    signals = {}
    for step in steps:
        at = prefixes(actions, observations, [bool(length <= step) for length in lengths], step)
        signals[step] = {name: signal(at) for name, signal in SIGNALS.items()}
    return Group(
        # the iteration is part of the id, because the same state is sampled in many iterations
        f"{row['state']['id']} of {place}",
        label_of(rewards),
        float(np.var(rewards)),
        len(rollouts),
        float(lengths.sum()),
        signals,
        {step: float(np.maximum(lengths - step, 0).sum()) for step in steps},
        row["state"].get("type"),
        int(row.get("iteration", 0)),
        {
            look["step"]: dict(look["values"]) | {KNOWN: _known(rewards, lengths <= look["step"])}
            for look in row.get("looks", ())
        },
    )


def _known(rewards: Sequence[float], ended: np.ndarray) -> float:
    """Returns the probability that the rewards of a group will differ, from the rewards of finished rollouts."""
    return mixed_probability([reward if over else 0.5 for reward, over in zip(rewards, ended, strict=True)])


def recordings(path: Path) -> list[Path]:
    """Returns the files of recorded rollouts at ``path``: a file, a run's folder, or a folder with a run for each seed.

    Old runs that ``fresh=true`` renamed are left out. If some seeds are finished, unfinished seeds are left out too.
    """
    if not path.is_dir():
        return [path]
    if found := _files(path / "rollouts") or sorted(path.glob("*.jsonl")):
        return found
    seeds = [seed for seed in sorted(path.glob("seed*")) if ".old-" not in seed.name]
    finished = [seed for seed in seeds if (seed / "result.json").is_file()]
    return [file for seed in finished or seeds for file in _files(seed / "rollouts")]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl")) or sorted(folder.glob("*.jsonl.gz"))
