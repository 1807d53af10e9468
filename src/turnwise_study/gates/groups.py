"""Reads recorded groups of rollouts and computes what a gate would have saved on them, with intervals over groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np

from turnwise.errors import InputError
from turnwise.evaluation.stats import wilson
from turnwise.methods.gate import mixed_probability, prefixes
from turnwise.methods.selective import SIGNALS
from turnwise.runs.archive import checked_lines, paths_of

Row = dict[str, Any]
Bounded = tuple[float, float | None, float | None]
"""A number and the two ends of its interval, which are None if the number has no interval."""


def counts(cut: np.ndarray, uniform: np.ndarray) -> Row:
    """How well a gate's cuts agree with the rewards of the groups: the numbers of ``cut`` groups, of those with equal
    rewards (``tp``, ``uniform``) and of the others (``fp``), precision and recall with Wilson's intervals, and
    ``over_base``, the precision minus that of cutting random groups.

    With the share s of groups that are cut, and the shares p and q of uniform groups among those that are cut and those
    that are not, ``over_base`` is (1 - s)(p - q). Its interval is (1 - s) times that of p - q (Newcombe 1998, method
    10): a bootstrap would show no spread for a precision of 0 or 1, however few groups are cut.
    """
    tp, fired, positives = int((cut & uniform).sum()), int(cut.sum()), int(uniform.sum())
    row: Row = {"cut": fired, "tp": tp, "fp": fired - tp}
    for name, trials in (("precision", fired), ("recall", positives)):
        found = wilson(tp, trials) if trials else None
        row[name] = found.mean if found else None
        row[f"{name}_ci95"] = [found.low, found.high] if found else None
    left = len(cut) - fired
    if not fired or not left:  # if all groups are cut, there is no difference from cutting random groups
        return row | {"over_base": 0.0 if fired else None, "over_base_ci95": [0.0, 0.0] if fired else None}
    of_cut, of_rest = wilson(tp, fired), wilson(positives - tp, left)
    bounds = difference((of_cut.mean, of_cut.low, of_cut.high), (of_rest.mean, of_rest.low, of_rest.high))
    share = left / len(cut)
    return row | {
        "over_base": share * (of_cut.mean - of_rest.mean),
        "over_base_ci95": bounds and [share * end for end in bounds],
    }


def difference(above: Bounded, below: Bounded) -> tuple[float, float] | None:
    """The interval of ``above`` - ``below`` of two independent numbers by variance estimates recovery (MOVER; Zou and
    Donner 2008; for proportions Newcombe 1998); None if one of them has no interval. For numbers that are positively
    correlated, it is too wide.
    """
    (a, a_low, a_high), (b, b_low, b_high) = above, below
    if a_low is None or a_high is None or b_low is None or b_high is None:
        return None
    return a - b - sqrt((a - a_low) ** 2 + (b_high - b) ** 2), a - b + sqrt((a_high - a) ** 2 + (b - b_low) ** 2)


CHUNK = 50_000  # largest number of indices drawn at a time, so that arrays fit into the cache of a CPU core

Statistic = Callable[..., np.ndarray]
"""A function that computes m values (..., m) from columns with one number for each of n groups (..., n). A leading axis
counts bootstrap resamples.
"""


def intervals(
    statistic: Statistic, columns: Sequence[np.ndarray], resamples: int, seed: int, confidence: float = 0.95
) -> list[list[float] | None]:
    """Percentile bootstrap intervals (Efron 1979), one for each of the m values of a statistic. A resample takes the
    same groups from all columns. Resamples in which a value is undefined, for example because no group is cut, are left
    out for it, which ``scipy.stats.bootstrap`` cannot. An interval is None if that leaves none, or with one group.
    """
    n = len(columns[0])
    width = np.atleast_1d(statistic(*columns)).shape[-1]
    if n < 2:
        return [None] * width
    rng = np.random.default_rng(seed)
    step = max(1, CHUNK // n)
    drawn = []
    for start in range(0, resamples, step):
        rows = rng.integers(0, n, (min(step, resamples - start), n))
        drawn.append(statistic(*(column[rows] for column in columns)))
    tail = (1 - confidence) / 2
    found: list[list[float] | None] = []
    for values in np.concatenate(drawn).T:
        defined = values[~np.isnan(values)]
        found.append([float(q) for q in np.quantile(defined, [tail, 1 - tail])] if len(defined) else None)
    return found


def rank_statistics(values: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Spearman's rho of the values with the reward variance, and their AUROC for detecting groups whose rewards differ:
    two inputs (..., n) -> (..., 2). Undefined statistics are NaN.
    """
    return placed_statistics(*places(variances, values))


def places(variances: np.ndarray, *signals: np.ndarray) -> list[np.ndarray]:
    """For each group, whether its rewards differ, and the positions of its variance and of each signal among the sorted
    distinct values (-1 for NaN). Positions save sorting in resamples.
    """
    columns = [np.unique(column, return_inverse=True)[1].reshape(column.shape) for column in (variances, *signals)]
    return [np.sqrt(variances) > 1e-6, *(np.where(np.isnan(v), -1, c) for c, v in zip(columns, (variances, *signals)))]


def placed_statistics(mixed: np.ndarray, variances: np.ndarray, *signals: np.ndarray) -> np.ndarray:
    """:func:`rank_statistics` of each signal in turn, from the arrays of :func:`places`: (..., 2 * number of signals)."""
    of_variance = _ranks(variances)
    b = of_variance - of_variance.mean(-1, keepdims=True)
    ones = mixed.sum(-1)
    pairs = ones * (mixed.shape[-1] - ones)
    found = []
    for values in signals:
        ranks = _ranks(values)
        a = ranks - ranks.mean(-1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append((a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1)))
            found.append(((ranks * mixed).sum(-1) - ones * (ones + 1) / 2) / pairs)
    return np.stack(found, -1)


def _ranks(column: np.ndarray) -> np.ndarray:
    rows = column.reshape(-1, column.shape[-1])
    width = int(rows.max(initial=0)) + 1
    cells = np.maximum(rows, 0) + width * np.arange(len(rows))[:, None]
    counts = np.bincount(cells.ravel(), minlength=width * len(rows)).reshape(-1, width)
    ranks = (counts.cumsum(-1) - (counts - 1) / 2).ravel()[cells]
    ranks[(rows < 0).any(-1)] = np.nan
    return ranks.reshape(column.shape)


Label = Literal["all_fail", "mixed", "all_succeed"]
LABELS: tuple[Label, ...] = ("all_succeed", "mixed", "all_fail")
# Name of a baseline signal, which is computed only from the rewards of finished rollouts.
KNOWN = "rewards_known"
TOLERANCE = 1e-6  # rewards with at most this std count as equal, as in turnwise.methods.credit


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
    if float(np.std(rewards)) > TOLERANCE:
        return "mixed"
    return "all_succeed" if float(np.mean(rewards)) > TOLERANCE else "all_fail"


def read_recorded(paths: Sequence[Path], steps: Sequence[int], horizon: int | None = None) -> Buffer:
    """Reads groups from files of recorded rollouts (docs/metrics.md, "rollouts/train.jsonl"), with the signals after K
    turns for each K in ``steps`` below the horizon T_max (None: the length of the longest rollout).

    A group is left out and counted in ``left_out`` if a gate stopped it, if it branches below its root, or if fewer
    than two of its rollouts have a reward.
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
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"{place}: this line is not a recorded rollout tree ({type(error).__name__}: {error}); give a file that a "
            "run of train.py wrote to its folder rollouts/"
        ) from error


def _paths(row: Mapping[str, Any]) -> tuple[list[list[Mapping[str, Any]]], list[float]] | str:
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
    return mixed_probability([reward if over else 0.5 for reward, over in zip(rewards, ended, strict=True)])


def recordings(path: Path) -> list[Path]:
    """The files of recorded rollouts at ``path``: a file, a run's folder, or a folder with a run for each seed. Old
    runs that ``fresh=true`` renamed are left out, and unfinished seeds if others are finished.
    """
    if not path.is_dir():
        return [path]
    if found := _files(path / "rollouts") or sorted(path.glob("*.jsonl")):
        return found
    seeds = [seed for seed in sorted(path.glob("seed*")) if ".old-" not in seed.name]
    finished = [seed for seed in seeds if (seed / "result.json").is_file()]
    return [file for seed in finished or seeds for file in _files(seed / "rollouts")]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


Played = Mapping[str, Any]
"""A recorded rollout tree, as in ``rollouts/train.jsonl`` (docs/metrics.md)."""


def read_arms(without: Path, gated: Path, resamples: int, seed: int) -> dict[str, Any]:
    """How much a gate saved, from runs without the gate and runs with it. Only groups that both arms recorded in
    iteration 0 are used, because the policies of both arms are still equal then.

    The arm without the gate shows how each group ends: a cut is correct if all rewards of the group there are equal.
    Groups with fewer than two rewards there are left out. ``saved_pct`` is in percent of turns, and
    ``tokens_saved_pct`` of tokens, if they are recorded. ``first_steps_pct`` is the percentage of groups whose actions
    and observations are equal in both arms up to the gate's decision, ``matched_pct`` that of the groups that the gate
    did not cut and that are equal up to the end.
    """
    arms = [_first_groups(path) for path in (without, gated)]
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


def _first_groups(path: Path) -> dict[tuple[str, str], Played]:
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
    return [np.array([sum(map(cost, group[arm]["turns"])) for group in groups]) for arm in (0, 1)]


def _saved(columns: Sequence[np.ndarray], resamples: int, seed: int, name: str, bounds: str) -> dict[str, Any]:
    (interval,) = intervals(saved_between, columns, resamples, seed)
    return {name: float(saved_between(*columns)[0]), bounds: interval}


def saved_between(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """By how many percent the sum over N groups falls: two inputs (..., N) -> (..., 1)."""
    return 100 * (1 - after.sum(-1) / before.sum(-1))[..., None]


def _same(free: Played, gated: Played, steps: int | None) -> bool:
    sides = []
    for turns in (free["turns"], gated["turns"]):
        paths = sorted(paths_of(turns))  # sorted by the index of the first turn, the order in which rollouts began
        sides.append([[(turns[i]["text"], turns[i]["observation"]) for i in path[:steps]] for path in paths])
    return bool(sides[0] == sides[1])


def replayed_savings(buffer: Buffer, cut: np.ndarray, k: int, resamples: int, seed: int) -> dict[str, Any]:
    """How much a gate would save on groups that were sampled without one (tier 1 of the paper): the turns after step
    ``k`` in the groups that it would cut, in percent of all turns.
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
