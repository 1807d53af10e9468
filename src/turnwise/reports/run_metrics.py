"""Reads metrics from the folder of a run, and the outcomes of single tasks if the folder holds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from turnwise.errors import InputError
from turnwise.experiments.jobs import Job
from turnwise.files import written
from turnwise.reports.find_runs import read_metric
from turnwise.runs.json_lines import checked_rows
from turnwise.runs.result_file import Result, ResultError, read_result

Outcomes = Mapping[str, Mapping[str, list[float]]]
"""Suite -> task -> score of each attempt, from 0 to 1. Held-out episodes form a single suite with an empty name."""

_EPISODES = re.compile(r"in_domain\.(?:(greedy|sampled)\.)?(?:by_split\.(\w+)\.|by_subset\.([\w-]+)\.)?(after|delta)")
_ANSWERS = re.compile(r"ood\.(?:(mean_change)|after(?:\.(\w+))?)")


@dataclass(slots=True)
class Scored:
    """The scores of one evaluation of a policy."""

    # (decoding mode, split, subset) -> task -> score of each attempt
    episodes: dict[tuple[str, str, str | None], dict[str, list[float]]] = field(default_factory=dict)
    answers: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # out-of-domain suite -> item -> scores


@dataclass(frozen=True, slots=True)
class _File:
    """A file with the results of an evaluation, identified by its content. Many runs hold the same evaluation of one
    base policy, which is therefore read only once.
    """

    path: Path = field(compare=False)
    checksum: bytes


@lru_cache(maxsize=4096)
def _checksum(path: Path, known: object) -> bytes:
    """Returns the checksum of a file. It is cached until ``known`` changes, which happens when the file is written."""
    return sha256(path.read_bytes()).digest()


@lru_cache(maxsize=1024)
def _read_scored(file: _File) -> Scored:
    found = Scored()
    for row in checked_rows(file.path):
        if "success" in row:
            tasks = found.episodes.setdefault((row["mode"], row["split"], row.get("subset")), {})
            tasks.setdefault(str(row["task"]), []).append(float(row["success"]))
        elif "score" in row:
            found.answers.setdefault(row["suite"], {}).setdefault(str(row["item"]), []).append(float(row["score"]))
    return found


class Damaged(InputError):
    """The error that is raised if a file of the run in ``folder`` cannot be read."""

    def __init__(self, folder: Path, said: str) -> None:
        super().__init__(said)
        self.folder = folder


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of a finished run, or of its copy that :mod:`turnwise.runs.keep_results` made.

    A metric is one of

    - a dotted path in ``result.json`` (``in_domain.after``);
    - a key of ``metrics.jsonl`` (``train/reward_std``), which stands for its mean over the training rows of this file,
      or a key of an evaluation (``eval/repeat_rate``), which stands for its mean over the evaluations. A prefix selects
      another statistic: ``late`` (mean over the second half), ``spread`` (standard deviation), ``last`` (last row) or
      ``sum``;
    - the quotient of two such metrics (``in_domain.delta / rollout_turns``);
    - ``profile_turns``, the turns sampled for profiles alone; ``sampled_turns``, the turns of rollouts and profiles
      together; or ``sampled_cpu_seconds``, the CPU seconds of training (rollouts and updates) and profiles together.
    """

    folder: Path
    result: Result

    def value(self, metric: str) -> float | None:
        """Returns the value of the metric, or None if this run has no value for it.

        Raises:
            InputError: ``metric`` is not the name of a metric.
        """
        first, sign, second = metric.partition(" / ")
        if sign:
            top, bottom = self.value(first), self.value(second)
            return None if top is None or not bottom else top / bottom
        how, _, key = metric.rpartition(" ")
        if how not in ("", "late", "spread", "last", "sum"):
            raise InputError(
                f"metric {metric!r}: the word before the key must be one of late, spread, last, sum, got {how!r}"
            )
        if key in _WITH_PROFILES:
            return _WITH_PROFILES[key](self)
        if "/" not in key:
            return read_metric(self.result, key)
        rows = self.rows if key.startswith("eval/") else self.training
        found = [row[key] for row in rows if row.get(key) is not None]
        if not found:
            return None
        if how == "spread":
            return pstdev(found)
        if how == "last":
            return found[-1]
        if how == "sum":
            return sum(found)
        return fmean(found[len(found) // 2 :] if how == "late" else found)

    def outcomes(self, metric: str, when: str = "after") -> Outcomes | None:
        """Returns the outcomes of the tasks over which ``metric`` is a mean, or None. ``when`` is ``base`` or
        ``after``.
        """
        episodes, answers = _EPISODES.fullmatch(metric), _ANSWERS.fullmatch(metric)
        found: dict[str, dict[str, list[float]]] = {}
        if episodes:
            mode, split, subset, _ = episodes.groups()
            mode = mode or getattr(self.result.in_domain, "decoding", None) or "sampled"
            for (of_mode, of_split, of_subset), tasks in self._scored(when).episodes.items():
                if of_mode == mode and split in (None, of_split) and subset in (None, of_subset):
                    for task, scores in tasks.items():
                        found.setdefault("", {}).setdefault(f"{of_split}/{task}", []).extend(scores)
        elif answers:
            for suite, items in self._scored(when).answers.items():
                if answers[2] in (None, suite):
                    found[suite] = {item: list(scores) for item, scores in items.items()}
        return found or None

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl``; empty if there is no such file.

        Raises:
            Damaged: the file cannot be read.
        """
        try:
            return checked_rows(self.folder / "metrics.jsonl")
        except InputError as error:
            raise Damaged(self.folder, str(error)) from error

    @cached_property
    def training(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row.get("phase") == "train"]

    def _scored(self, when: str) -> Scored:
        path = self.folder / "evaluation" / f"{when}.jsonl"
        try:
            return _read_scored(_File(path, _checksum(path, written([path])))) if path.exists() else Scored()
        except (InputError, OSError) as error:
            raise Damaged(self.folder, str(error)) from error


def metrics_by_seed(wanted: Sequence[Job], place: Path, notes: list[str]) -> dict[int, RunMetrics]:
    """Returns seed -> run for the ``wanted`` runs that are finished and below ``place``. Notes name unreadable runs."""
    runs = {}
    for job in wanted:
        folder = place / job.name / f"seed{job.seed}"
        if (folder / "result.json").exists():
            try:
                runs[job.seed] = _measured(folder, _files(folder))
            except (ResultError, Damaged, OSError) as error:
                notes.append(f"left out: {error}")
    return runs


@lru_cache(maxsize=512)
def _measured(folder: Path, known: object) -> RunMetrics:
    """Reads a run. The result is cached until ``known`` changes, which happens when the run is written again."""
    run = RunMetrics(folder, read_result(folder))
    _ = run.rows  # the rows are read here, because a run with damaged rows does not count as finished
    return run


def _files(folder: Path) -> tuple[object, ...]:
    """Returns a value that changes when the result or the metrics of a run are written again."""
    return written(file for name in ("result.json", "metrics.jsonl") if (file := folder / name).exists())


def _profile_turns(run: RunMetrics) -> float | None:
    """Returns the number of actions that the profiles of a run sampled, or None if it is unknown or no profile exists.

    A ``result.json`` of an older version of the code lacks ``profile_turns``. It holds only the number of judged
    actions in the first profile, so the number is unknown if the run made further profiles.
    """
    if run.result.profile_turns is not None:
        return float(run.result.profile_turns)
    judged = [found["profile"].get("judged") for found in run.result.verifier.values() if "profile" in found]
    once = all(row.get("states/profiles", 1) == 1 for row in run.training)
    return float(sum(judged)) if once and judged and None not in judged else None


def _profiled(run: RunMetrics) -> bool:
    return "profile" in run.result.seconds or any("profile" in found for found in run.result.verifier.values())


def _sampled_turns(run: RunMetrics) -> float | None:
    """Returns the number of turns in rollouts and profiles, or None if the number of a profile is unknown."""
    turns = _profile_turns(run)
    return None if turns is None and _profiled(run) else run.result.rollout_turns + (turns or 0.0)


def _sampled_cpu_seconds(run: RunMetrics) -> float | None:
    """Returns the CPU seconds of training and profiles together, or None if either number is unknown."""
    profile = run.result.profile_cpu_seconds
    if run.result.cpu_seconds is None or (profile is None and (_profiled(run) or _profile_turns(run) is not None)):
        return None
    return run.result.cpu_seconds + (profile or 0.0)


_WITH_PROFILES: Mapping[str, Callable[[RunMetrics], float | None]] = {
    "profile_turns": _profile_turns,
    "sampled_turns": _sampled_turns,
    "sampled_cpu_seconds": _sampled_cpu_seconds,
}


def other_decoding(metric: str) -> str | None:
    """Returns a success metric for the other decoding mode (greedy or sampled), or None for any other metric."""
    found = re.fullmatch(r"in_domain\.(greedy\.|sampled\.)?(?=.*(?:after|delta)$)(.*)", metric)
    if found is None:
        return None
    return f"in_domain.{'sampled' if found[1] == 'greedy.' else 'greedy'}.{found[2]}"


def is_change(metric: str) -> bool:
    """Returns whether a metric is a change through training, measured against the run's own base policy."""
    return metric.endswith((".delta", ".mean_change"))
