"""Finds the folders of runs, and reads any metric of a run, over seeds, with its label."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from omegaconf import OmegaConf

from turnwise.errors import InputError
from turnwise.files import read_yaml, written
from turnwise.runs.archive import opened
from turnwise.runs.figures import LABELS
from turnwise.runs.json_lines import checked_lines
from turnwise.runs.page import judged_on_dialogues
from turnwise.runs.result_file import Result, read_result
from turnwise_study.sweeps.jobs import Job

SUCCESS, ACCEPTED = "held-out success", "accepted replies in held-out dialogues"
RESULT = {
    "in_domain.base": "held-out success before training, %",
    "in_domain.after": "held-out success after training, %",
    "general.kl.after": "divergence from the base model, nats a token",
    "general.same.after": "same most likely token as the base model, %",
    "in_domain.delta": "change of held-out success, points",
    "in_domain.greedy.after": "held-out success after training, greedy, %",
    "in_domain.greedy.delta": "change of held-out success, greedy, points",
    "in_domain.subset_mean.after": "held-out success after training, mean over subsets, %",
    "in_domain.subset_mean.delta": "change of held-out success, mean over subsets, points",
    "ood.mean_change": "out-of-domain change, points",
    "ood.after": "out-of-domain score after training, mean over suites, %",
    "rollout_turns": "turns played for training",
    "rollout_tokens": "tokens sampled for training",
    "sampled_turns": "turns sampled, profiles included",
    "sampled_cpu_seconds": "CPU seconds of training, profiles included",
    "profile_turns": "turns of profiles",
    "cpu_seconds": "CPU seconds of training",
    "seconds.rollouts": "seconds of rollouts",
    "seconds.updates": "seconds of updates",
}
_HOW = {
    "late": "later half",
    "spread": "standard deviation",
    "last": "last iteration",
    "sum": "all iterations together",
}
_PART = re.compile(r"in_domain\.(?:(greedy|sampled)\.)?by_(split|subset)\.([\w-]+)\.(after|delta)$")
_SUITE = re.compile(r"ood\.(base|after)\.(\w+)$")


def metric_label(metric: str, dialogues: bool = False) -> str:
    """The label of a metric, or the metric itself. ``dialogues``: the runs are evaluated on held-out dialogues."""
    if dialogues:
        return metric_label(metric).replace(SUCCESS, ACCEPTED)
    top, sign, below = metric.partition(" / ")
    if sign:
        return f"{metric_label(top)}, per {metric_label(below)}"
    how, _, key = metric.rpartition(" ")
    if how in _HOW:
        return f"{metric_label(key)}, {_HOW[how]}" if metric_label(key) != key else metric
    if match := _PART.match(metric):
        mode, _, name, when = match.groups()
        what = "held-out success after training, %" if when == "after" else "change of held-out success, points"
        head, _, unit = what.rpartition(", ")
        return f"{head}, {name}{f', {mode}' if mode else ''}, {unit}"
    if match := _SUITE.match(metric):
        return f"{match[2]} {'before' if match[1] == 'base' else 'after'} training, %"
    return RESULT.get(metric) or LABELS.get(metric, metric)


def read_metric(result: Result, metric: str) -> float | None:
    """The number at a dotted path of a result, such as ``in_domain.after``. ``seconds`` alone is the sum over all
    phases, ``ood.base`` and ``ood.after`` alone are means over all suites.
    """
    node: Any = result
    for part in metric.split("."):
        if not isinstance(node, Mapping) and not hasattr(node, part):
            raise InputError(
                f"metric {metric!r}: result.json has no entry {part!r}; turnwise/runs/result_file.py lists the entries"
            )
        node = node.get(part) if isinstance(node, Mapping) else getattr(node, part)
        if node is None:
            return None
    if isinstance(node, Mapping):
        numbers = [float(value) for value in node.values()]
        return (sum(numbers) / (1 if metric == "seconds" else len(numbers))) if numbers else None
    if not isinstance(node, int | float):
        raise InputError(f"metric {metric!r}: this entry of result.json is not a number")
    return float(node)


def folders_of(paths: Iterable[Path | str]) -> list[Path]:
    """The folders of runs, finished or not, at or below ``paths``, except renamed ones."""
    folders: set[Path] = set()
    for root in map(opened, paths):
        if not root.is_dir():
            raise InputError(f"{root}: this folder does not exist; give folders of runs, e.g. outputs/pivotrl")
        folders |= {file.parent for name in ("config.yaml", "result.json") for file in root.rglob(name)}
    runs = sorted(run for run in folders if ".old-" not in run.name)
    if not runs:
        raise InputError(f"no run under {', '.join(map(str, paths))}; give a folder that contains config.yaml")
    return runs


Outcomes = Mapping[str, Mapping[str, list[float]]]
"""Suite -> task -> score of each attempt, from 0 to 1. Held-out episodes form a single suite with an empty name."""

_EPISODES = re.compile(r"in_domain\.(?:(greedy|sampled)\.)?(?:by_split\.(\w+)\.|by_subset\.([\w-]+)\.)?(after|delta)")
_ANSWERS = re.compile(r"ood\.(?:(mean_change)|after(?:\.(\w+))?)")


@lru_cache(maxsize=1024)
def _read_scored(path: Path, known: object) -> dict[tuple[Any, ...], dict[str, list[float]]]:
    """(decoding mode, split, subset) or (out-of-domain suite,) -> task or item -> score of each attempt. Cached until the
    file changes: an evaluation is read for every claim on its run.
    """
    scores: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    place: tuple[Any, ...]
    for line, row in checked_lines(path):
        try:
            if "success" in row:
                place, name, score = (row["mode"], row["split"], row.get("subset")), row["task"], row["success"]
            elif "score" in row:
                place, name, score = (row["suite"],), row["item"], row["score"]
            else:
                continue
            scores.setdefault(place, {}).setdefault(str(name), []).append(float(score))
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"{line}: not the outcome of an evaluation ({error!r}); repeat the run") from error
    return scores


def all_on_dialogues(results: Iterable[Result]) -> bool:
    judged = [judged_on_dialogues(result) for result in results]
    return bool(judged) and all(judged)


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of a finished run, or of its compressed copy that :mod:`turnwise.runs.result_file` made.

    A metric is one of

    - a dotted path in ``result.json`` (``in_domain.after``);
    - a key of ``metrics.jsonl`` (``train/reward_std``), which stands for its mean over the training rows of this file,
      or a key of an evaluation (``eval/repeat_rate``), which stands for its mean over the evaluations. A prefix selects
      another statistic: ``late`` (mean over the second half), ``spread`` (standard deviation), ``last`` (last row) or
      ``sum``;
    - ``config`` and a key of the run's configuration (``config data.good``);
    - the quotient of two such metrics (``in_domain.delta / rollout_turns``);
    - ``sampled_turns`` and ``sampled_cpu_seconds``, of rollouts (and updates) and profiles together.
    """

    folder: Path
    result: Result

    def value(self, metric: str) -> float | None:
        """The value of the metric, or None if this run has no value for it."""
        first, sign, second = metric.partition(" / ")
        if sign:
            top, bottom = self.value(first), self.value(second)
            return None if top is None or not bottom else top / bottom
        how, _, key = metric.rpartition(" ")
        if how == "config":
            setting = OmegaConf.select(OmegaConf.create(read_yaml(self.folder / "config.yaml")), key)
            return None if setting is None else float(setting)
        if how and how not in _HOW:
            raise InputError(f"metric {metric!r}: before the key may be one of {', '.join(_HOW)}, config, got {how!r}")
        if key == "sampled_turns":
            return self.result.rollout_turns + float(self.result.profile_turns or 0)
        if key == "sampled_cpu_seconds":
            spent = self.result.cpu_seconds
            return None if spent is None else spent + (self.result.profile_cpu_seconds or 0.0)
        if "/" not in key:
            return read_metric(self.result, key)
        rows = self.rows if key.startswith("eval/") else self.training
        numbers = [row[key] for row in rows if row.get(key) is not None]
        if not numbers:
            return None
        if how == "spread":
            return pstdev(numbers)
        if how == "last":
            return numbers[-1]
        if how == "sum":
            return sum(numbers)
        return fmean(numbers[len(numbers) // 2 :] if how == "late" else numbers)

    def outcomes(self, metric: str, when: str = "after") -> Outcomes | None:
        """The outcomes of the tasks over which ``metric`` is a mean, or None. ``when`` is ``base`` or ``after``."""
        episodes, answers = _EPISODES.fullmatch(metric), _ANSWERS.fullmatch(metric)
        by_suite: dict[str, dict[str, list[float]]] = {}
        if episodes:
            mode, split, subset, _ = episodes.groups()
            mode = mode or getattr(self.result.in_domain, "decoding", None) or "sampled"
            for place, tasks in self._scored(when).items():
                if len(place) == 3 and all(of in (None, one) for of, one in zip((mode, split, subset), place)):
                    for task, scores in tasks.items():
                        by_suite.setdefault("", {}).setdefault(f"{place[1]}/{task}", []).extend(scores)
        elif answers:
            for (suite, *rest), items in self._scored(when).items():
                if not rest and answers[2] in (None, suite):
                    by_suite[suite] = items
        return by_suite or None

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl``; empty if there is no such file."""
        return [row for _, row in checked_lines(self.folder / "metrics.jsonl")]

    @cached_property
    def training(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row.get("phase") == "train"]

    def _scored(self, when: str) -> dict[tuple[Any, ...], dict[str, list[float]]]:
        path = self.folder / "evaluation" / f"{when}.jsonl"
        return _read_scored(path, written([path])) if path.exists() else {}


Runs = Mapping[int, RunMetrics]
"""Seed -> run, for the runs of one row."""


def values(runs: Runs, metric: str) -> dict[int, float]:
    by_seed = {seed: run.value(metric) for seed, run in sorted(runs.items())}
    return {seed: value for seed, value in by_seed.items() if value is not None}


_READ = ("result.json", "metrics.jsonl", "evaluation/base.jsonl", "evaluation/after.jsonl")


def metrics_by_seed(wanted: Sequence[Job], place: Path, notes: list[str]) -> dict[int, RunMetrics]:
    """Seed -> run for the ``wanted`` runs that are finished and below ``place``. Notes name unreadable runs."""
    runs = {}
    for job in wanted:
        folder = place / job.name / f"seed{job.seed}"
        if (folder / "result.json").exists():
            try:
                files = (file for name in _READ if (file := folder / name).exists())
                runs[job.seed] = _measured(folder, written(files))
            except (InputError, OSError) as error:
                notes.append(f"left out: {error}")
    return runs


@lru_cache(maxsize=512)
def _measured(folder: Path, known: object) -> RunMetrics:
    run = RunMetrics(folder, read_result(folder))
    _ = run.rows, run._scored("base"), run._scored("after")  # a run with a damaged line does not count as finished
    return run


def other_decoding(metric: str) -> str | None:
    """A success metric for the other decoding mode (greedy or sampled), or None for any other metric."""
    match = re.fullmatch(r"in_domain\.(greedy\.|sampled\.)?(?=.*(?:after|delta)$)(.*)", metric)
    if match is None:
        return None
    return f"in_domain.{'sampled' if match[1] == 'greedy.' else 'greedy'}.{match[2]}"


def is_change(metric: str) -> bool:
    """Whether a metric is a change through training, measured against the run's own base policy."""
    return metric.endswith((".delta", ".mean_change"))
