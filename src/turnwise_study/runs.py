"""Finds finished runs, groups them into rows that differ only in the seed, and reads their metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from turnwise.errors import InputError
from turnwise.files import read_yaml, written
from turnwise.runs.archive import RunPath, checked_rows
from turnwise.runs.result_file import Result, ResultError, read_result
from turnwise.runs.run_folder import recorded
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
LOGGED = {
    "train/reward_mean": "mean reward",
    "train/reward_std": "spread of rewards in a group",
    "train/kl_ref": "KL to the reference",
    "train/kl_sampler": "KL of trainer and sampler",
    "train/entropy": "entropy",
    "train/repeat_rate": "repeated actions",
    "train/grad_norm": "gradient norm",
    "train/clip_fraction": "clipped tokens",
    "train/effective_groups": "groups with signal",
    "train/loss": "loss",
    "train/nll": "negative log-likelihood",
    "rollout/turns": "turns played so far",
    "rollout/tokens": "tokens sampled so far",
    "rollout/tokens_per_s": "tokens sampled a second",
    "rollout/trajectories": "trajectories played so far",
    "cpu/iteration": "CPU seconds of an iteration",
    "eval/repeat_rate": "repeated actions in evaluations",
}
_HOW = {
    "late": "later half",
    "spread": "standard deviation",
    "last": "last iteration",
    "sum": "all iterations together",
}
_PART = re.compile(r"in_domain\.(?:(greedy|sampled)\.)?by_(split|subset)\.([\w-]+)\.(after|delta)$")
_SUITE = re.compile(r"ood\.(base|after)\.(\w+)$")


def words(metric: str, dialogues: bool = False) -> str:
    """The label of a metric, or the metric itself. ``dialogues``: the runs are evaluated on held-out dialogues."""
    if dialogues:
        return words(metric).replace(SUCCESS, ACCEPTED)
    top, sign, below = metric.partition(" / ")
    if sign:
        return f"{words(top)}, per {words(below)}"
    how, _, key = metric.rpartition(" ")
    if how in _HOW:
        return f"{words(key)}, {_HOW[how]}" if words(key) != key else metric
    if found := _PART.match(metric):
        mode, _, name, when = found.groups()
        what = "held-out success after training, %" if when == "after" else "change of held-out success, points"
        head, _, unit = what.rpartition(", ")
        return f"{head}, {name}{f', {mode}' if mode else ''}, {unit}"
    if found := _SUITE.match(metric):
        return f"{found[2]} {'before' if found[1] == 'base' else 'after'} training, %"
    return RESULT.get(metric) or LOGGED.get(metric, metric)


def success_keys(logged: Iterable[str]) -> dict[str, str]:
    """Split -> key of held-out success in ``metrics.jsonl``; greedy keys only if there are no sampled ones."""
    names = sorted(logged)
    for ending in ("success", "success_greedy"):
        keys = [key for key in names if key.startswith("eval/") and key.endswith(f"/{ending}")]
        if keys:
            return {key.split("/")[1]: key for key in keys}
    return {}


@dataclass(frozen=True, slots=True)
class RunRow:
    """The runs of one configuration, which differ only in the seed."""

    name: str
    results: dict[int, Result]  # seed -> result
    config: Mapping[str, object] = field(default_factory=dict)  # settings of the first seed, by dotted key
    folders: Mapping[int, Path] = field(default_factory=dict)  # seed -> folder of the run

    @property
    def seeds(self) -> list[int]:
        return sorted(self.results)

    @property
    def first(self) -> Result:
        return self.results[self.seeds[0]]

    def values(self, metric: str) -> dict[int, float]:
        """Seed -> number at the dotted path ``metric`` of ``result.json``, if the result has the number."""
        found = {seed: read_metric(self.results[seed], metric) for seed in self.seeds}
        return {seed: value for seed, value in found.items() if value is not None}


@dataclass(slots=True)
class FinishedRuns:
    """All finished runs under some folders."""

    sections: dict[tuple[str, str], list[RunRow]] = field(default_factory=dict)  # (environment, scale) -> rows of runs
    notes: list[str] = field(default_factory=list)  # runs that were left out, with the reasons
    folders: list[Path] = field(default_factory=list)  # folders of the finished runs


def collect(paths: Iterable[Path | str]) -> FinishedRuns:
    """Finds every finished run at or below ``paths``, and groups runs of one name into rows with one run per seed."""
    roots = [RunPath(path) for path in paths]
    collection, configs = FinishedRuns(), {}
    places: dict[tuple[str, str, str, int], Path] = {}
    newest: dict[tuple[str, str, str, int], float] = {}
    found: dict[tuple[str, str], dict[str, dict[int, Result]]] = {}
    for folder in sorted(set(_runs_below(roots))):
        if not (folder / "result.json").exists():
            collection.notes.append(f"{folder}: this run is not finished and is left out.")
            continue
        try:
            result = read_result(folder)
        except ResultError as error:
            collection.notes.append(f"left out: {error}")
            continue
        config = _config(folder / "config.yaml")
        name = result.name or str(config.get("name") or result.method)
        collection.folders.append(folder)
        key, written = (result.env, result.scale, name, result.seed), (folder / "result.json").stat().st_mtime
        if key in newest:
            used, left = (places[key], folder) if written < newest[key] else (folder, places[key])
            collection.notes.append(f"{name}, seed {result.seed}: {used} is used, because {left} is an older run.")
            if used != folder:
                continue
        newest[key] = written
        found.setdefault(key[:2], {}).setdefault(name, {})[result.seed] = result
        configs[key], places[key] = _decides(config), folder
    if not found:
        said = "\n".join(collection.notes)
        raise InputError(f"no finished run under {', '.join(map(str, roots))}; finish one with python train.py\n{said}")
    for section, rows in sorted(found.items()):
        collection.sections[section] = [
            RunRow(
                name,
                results,
                configs[*section, name, min(results)],
                {seed: places[*section, name, seed] for seed in results},
            )
            for name, results in sorted(rows.items())
        ]
        for row in collection.sections[section]:
            collection.notes += _drift(row, [configs[*section, row.name, seed] for seed in row.seeds])
    return collection


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


def _config(path: Path) -> dict[str, Any]:
    try:
        config = read_yaml(path)
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _decides(config: dict[str, Any]) -> dict[str, object]:
    try:
        return recorded(OmegaConf.create(config))
    except OmegaConfBaseException:
        return {}


def _drift(row: RunRow, configs: list[dict[str, object]]) -> list[str]:
    """A note if the seeds of a row differ in other settings, so that their mean would mix configurations. A setting
    that repeats the seed (``allocator.seed``) is none, nor is the policy of the same seed of another row
    (``policy.start``).
    """
    keys = sorted({key for config in configs for key in config})
    said = {key: [_without_seed(config.get(key), seed) for config, seed in zip(configs, row.seeds)] for key in keys}
    repeats = {key for key in keys if all(config.get(key) == seed for config, seed in zip(configs, row.seeds))}
    odd = [key for key in keys if key not in repeats and any(value != said[key][0] for value in said[key])]
    return [f"{row.name}: its seeds differ in {', '.join(odd[:5])}, so their mean mixes settings."] if odd else []


def _without_seed(value: object, seed: int) -> object:
    return re.sub(rf"\bseed{seed}(?=/|$)", "seed*", value) if isinstance(value, str) else value


def folders_of(paths: Sequence[Path | str]) -> list[Path]:
    """The run folders at or below ``paths``."""
    found = list(_runs_below(map(RunPath, paths)))
    if not found:
        raise InputError(f"no run under {', '.join(map(str, paths))}; give a folder that contains config.yaml")
    return found


def _runs_below(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        if not root.is_dir():
            raise InputError(
                f"{root}: this folder does not exist; give folders of runs, or folders that contain them, e.g. "
                "outputs/pivotrl"
            )
        runs = {file.parent for name in ("config.yaml", "result.json") for file in root.rglob(name)}
        yield from sorted(run for run in runs if ".old-" not in run.name)


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


@lru_cache(maxsize=1024)
def _read_scored(path: Path, known: object) -> Scored:
    """Cached until the file changes: an evaluation is read for every claim on its run."""
    found = Scored()
    for row in checked_rows(path):
        if "success" in row:
            tasks = found.episodes.setdefault((row["mode"], row["split"], row.get("subset")), {})
            tasks.setdefault(str(row["task"]), []).append(float(row["success"]))
        elif "score" in row:
            found.answers.setdefault(row["suite"], {}).setdefault(str(row["item"]), []).append(float(row["score"]))
    return found


def judged_on_dialogues(result: Result) -> bool:
    """Whether the main number of a result was measured on held-out dialogues, not on an environment's tasks."""
    return result.held_out is not None and not result.in_domain.by_split


def all_on_dialogues(results: Iterable[Result]) -> bool:
    judged = [judged_on_dialogues(result) for result in results]
    return bool(judged) and all(judged)


class Damaged(InputError):
    """The error that is raised if a file of the run in ``folder`` cannot be read."""

    def __init__(self, folder: Path, said: str) -> None:
        super().__init__(said)
        self.folder = folder


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
            found_here = OmegaConf.select(OmegaConf.create(read_yaml(self.folder / "config.yaml")), key)
            return None if found_here is None else float(found_here)
        if how not in ("", "late", "spread", "last", "sum"):
            raise InputError(
                f"metric {metric!r}: the word before the key must be one of late, spread, last, sum, config, got {how!r}"
            )
        if key == "sampled_turns":
            return self.result.rollout_turns + float(self.result.profile_turns or 0)
        if key == "sampled_cpu_seconds":
            spent = self.result.cpu_seconds
            return None if spent is None else spent + (self.result.profile_cpu_seconds or 0.0)
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
        """The outcomes of the tasks over which ``metric`` is a mean, or None. ``when`` is ``base`` or ``after``."""
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
        """The rows of ``metrics.jsonl``; empty if there is no such file."""
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
            return _read_scored(path, written([path])) if path.exists() else Scored()
        except (InputError, OSError) as error:
            raise Damaged(self.folder, str(error)) from error


def metrics_by_seed(wanted: Sequence[Job], place: Path, notes: list[str]) -> dict[int, RunMetrics]:
    """Seed -> run for the ``wanted`` runs that are finished and below ``place``. Notes name unreadable runs."""
    runs = {}
    for job in wanted:
        folder = place / job.name / f"seed{job.seed}"
        if (folder / "result.json").exists():
            try:
                runs[job.seed] = _measured(folder, _state_files(folder))
            except (ResultError, Damaged, OSError) as error:
                notes.append(f"left out: {error}")
    return runs


@lru_cache(maxsize=512)
def _measured(folder: Path, known: object) -> RunMetrics:
    run = RunMetrics(folder, read_result(folder))
    _ = run.rows  # the rows are read here, because a run with damaged rows does not count as finished
    return run


def _state_files(folder: Path) -> tuple[object, ...]:
    return written(file for name in ("result.json", "metrics.jsonl") if (file := folder / name).exists())


def other_decoding(metric: str) -> str | None:
    """A success metric for the other decoding mode (greedy or sampled), or None for any other metric."""
    found = re.fullmatch(r"in_domain\.(greedy\.|sampled\.)?(?=.*(?:after|delta)$)(.*)", metric)
    if found is None:
        return None
    return f"in_domain.{'sampled' if found[1] == 'greedy.' else 'greedy'}.{found[2]}"


def is_change(metric: str) -> bool:
    """Whether a metric is a change through training, measured against the run's own base policy."""
    return metric.endswith((".delta", ".mean_change"))
