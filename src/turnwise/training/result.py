"""Computes a run's result from the evaluations before and after training, and records how the run was made. Rates are
percentages (0 to 100).
"""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from turnwise.evaluation.general import counted
from turnwise.evaluation.reply_statistics import paired_change, pooled
from turnwise.evaluation.stats import Estimate, paired_difference, paired_mean_difference, pass_at_k
from turnwise.evaluation.suites import Evaluation, repeat_rate
from turnwise.runs.config_hash import config_hash
from turnwise.runs.status_file import typed
from turnwise.training.candidates import Candidates
from turnwise.training.own_data import held_out_headline, held_out_metrics, held_out_result

OF_A_RUN = (":/src", ":/conf", ":/scripts", ":/train.py")  # git pathspecs of the files that a run's result depends on
LIBRARIES = ("turnwise", "torch", "lightning", "transformers", "peft", "hydra-core")

Scores = dict[str, dict[str, list[float]]]
"""Suite -> item -> the scores of its attempts."""


def comparison(base: Evaluation, after: Evaluation, mode: str, split: str | None = None) -> dict[str, Any]:
    """Returns the success rates before and after training on the tasks in both evaluations, and the change with a
    paired 95 % confidence interval.
    """
    return _compared(base.success(mode, split), after.success(mode, split))


def by_subset(base: Evaluation, after: Evaluation, mode: str) -> dict[str, Any]:
    """Returns the comparison of success before and after training for each subset of the benchmark, and for the
    unweighted mean over the subsets. The result is empty if tasks have no subset.
    """
    sides = [
        {name: dict(sorted(tasks.items())) for name, tasks in side.by_subset(mode).items()} for side in (base, after)
    ]
    before, since = _both(*sides)
    if not before:
        return {}
    first, last = (float(np.mean([_mean(tasks) for tasks in side.values()])) for side in (before, since))
    mean = _change(first, last, paired_mean_difference(before, since), sum(map(len, before.values())))
    return {"by_subset": {name: _compared(before[name], since[name]) for name in before}, "subset_mean": mean}


def _compared(before: Mapping[str, list[float]], since: Mapping[str, list[float]]) -> dict[str, Any]:
    tasks = sorted(before.keys() & since.keys())
    if not tasks:
        return {}
    before, since = {t: before[t] for t in tasks}, {t: since[t] for t in tasks}
    return _change(_mean(before), _mean(since), paired_difference(before, since), len(tasks))


def _change(before: float, since: float, change: Estimate, tasks: int) -> dict[str, Any]:
    base, after = _points(before), _points(since)
    delta = round(after - base, 2)
    return {"base": base, "after": after, "delta": delta, "delta_ci95": _interval(change), "tasks": tasks}


def in_domain(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``in_domain`` of ``result.json``: success before and after training, for sampled and for greedy
    attempts. The headline is the comparison of sampled attempts, or without sampled attempts, of greedy attempts.
    """
    modes = {mode: comparison(base, after, mode) for mode in ("sampled", "greedy")}
    modes = {mode: found for mode, found in modes.items() if found}
    headline = next(iter(modes), "sampled")
    splits = sorted({episode.split for episode in base.episodes})
    return {
        **modes.get(headline, {}),
        "decoding": headline,
        "by_split": {split: comparison(base, after, headline, split) for split in splits},
        **by_subset(base, after, headline),
        **modes,
        "pass_at_k": _pass_at_k(base, after),
    }


def out_of_domain(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``ood`` of ``result.json``: the scores on each out-of-domain suite before and after training,
    the change on each suite, and the mean change over the suites. Changes have confidence intervals.
    """
    before, since = _both(base.skills(), after.skills())
    if not before:
        return {}
    change = paired_mean_difference(before, since)
    per_suite = {suite: paired_difference(before[suite], since[suite]) for suite in before}
    return {
        "base": {suite: _points(_mean(items)) for suite, items in before.items()},
        "after": {suite: _points(_mean(items)) for suite, items in since.items()},
        "mean_change": _points(change.mean),
        "mean_change_ci95": _interval(change),
        "change_ci95": {suite: found for suite, e in per_suite.items() if (found := _interval(e))},
        "items": {suite: len(items) for suite, items in before.items()},
    }


def divergence(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``general`` of ``result.json``: the divergence from the base model on general questions in nats
    a token, and how often (percent) both find the same token most likely, before and after training.
    """
    entry: dict[str, Any] = {"questions": len(after.general), "tokens": sum(row.tokens for row in after.general)}
    for value, unit in (("kl", 1.0), ("same", 100.0)):
        sides = counted(base.general, value), counted(after.general, value)
        change = paired_change(*sides, shares=False)
        before, since = (round(unit * pooled(side), 4) for side in sides)
        low, high = change.low, change.high
        interval = None if low is None or high is None else [round(unit * low, 4), round(unit * high, 4)]
        entry[value] = {"base": before, "after": since, "delta": round(since - before, 4), "delta_ci95": interval}
    return entry


def _both(before: Scores, since: Scores) -> tuple[Scores, Scores]:
    """Returns ``before`` and ``since`` without items that only one of the two evaluations contains, because the item's
    environment failed in the other evaluation.
    """
    common = {suite: [item for item in items if item in since.get(suite, {})] for suite, items in before.items()}
    sides = [
        {s: {item: side[s][item] for item in items} for s, items in common.items() if items} for side in (before, since)
    ]
    return sides[0], sides[1]


def result_of(
    cfg: DictConfig,
    environment: str,
    candidates: Candidates,
    base: Evaluation,
    after: Evaluation,
    entries: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the content of ``result.json``.

    Args:
        environment: name of the environment. If the headline is about a user's file, the result contains the name of
            the file instead.
        entries: further entries, such as costs, verdicts and warnings.
    """
    file, held_out = candidates.headline, held_out_result(base, after)
    domains: dict[str, Any] = {"in_domain": in_domain(base, after)}
    if file is not None:  # the headline is about the replies in held-out dialogues
        domains = {"environment": domains["in_domain"]} if base.episodes else {}
        domains["in_domain"] = held_out_headline(base, after) if held_out else {}
    if held_out:
        domains["held_out"] = held_out
    if after.general:
        domains["general"] = divergence(base, after)
    return {
        "method": cfg.method,
        "env": file or environment,
        "scale": cfg.scale,
        "seed": int(cfg.seed),
        "name": cfg.name,
        **domains,
        "ood": out_of_domain(base, after),
        "bad_trajectories": len(candidates.problems),
        **entries,
        "config_hash": config_hash(cfg),
        **provenance(),
    }


def summary(evaluation: Evaluation) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for mode in ("sampled", "greedy"):
        for split in sorted({episode.split for episode in evaluation.episodes}):
            if scores := evaluation.success(mode, split):
                suffix = "" if mode == "sampled" else "_greedy"
                metrics[f"eval/{split}/success{suffix}"] = _points(_mean(scores))
    subsets = evaluation.by_subset("sampled") or evaluation.by_subset("greedy")
    metrics |= {f"eval/success/{name}": _points(_mean(scores)) for name, scores in subsets.items()}
    said = [[m["content"] for m in e.messages if m["role"] == "assistant"] for e in evaluation.episodes]
    if said:
        metrics["eval/repeat_rate"] = round(sum(map(repeat_rate, said)) / len(said), 4)
    for suite, items in evaluation.skills().items():
        metrics[f"eval/ood/{suite}"] = _points(_mean(items))
    if evaluation.general:
        for value, unit in (("kl", 1.0), ("same", 100.0)):
            metrics[f"eval/general/{value}"] = round(unit * pooled(counted(evaluation.general, value)), 4)
    return metrics | held_out_metrics(evaluation)


def _pass_at_k(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    before, since = base.success("sampled"), after.success("sampled")
    if not before or not since:
        return {}
    fewest = min(len(scores) for side in (before, since) for scores in side.values())

    def at(side: Mapping[str, list[float]], k: int) -> float:
        return _points(pass_at_k([len(s) for s in side.values()], [int(sum(s)) for s in side.values()], k))

    ks = [k for k in (1, 2, 4, 8, 16, 32) if k <= fewest]
    return {str(k): {"base": at(before, k), "after": at(since, k)} for k in ks}


def _mean(scores: Mapping[str, list[float]]) -> float:
    return float(np.mean([np.mean(values) for values in scores.values()]))


def _points(share: float) -> float:
    return round(100 * float(share), 2)


def _interval(estimate: Estimate) -> list[float] | None:
    if estimate.low is None or estimate.high is None:
        return None
    return [_points(estimate.low), _points(estimate.high)]


# -- how the run was made ----------------------------------------------------------------------------------------------


def provenance() -> dict[str, Any]:
    return {
        "command": command(),
        "commit": commit(),
        "versions": {name: _version(name) for name in LIBRARIES},
        "machine": machine(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def command(resumes: bool = False) -> str:
    """Returns this process's command line as typed. With ``resumes``, the argument ``fresh=...`` is left out, so that
    the command resumes the run.
    """
    given = [word for word in typed(sys.argv[1:]) if not (resumes and word.lower().startswith("fresh="))]
    return shlex.join(["python", sys.argv[0], *given])


@cache
def commit() -> str:
    """Returns the commit of the git checkout, followed by ``+`` if code or configuration has uncommitted changes, or an
    empty text outside a checkout. Later calls return the value of the first call.
    """
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--", *OF_A_RUN], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def machine() -> str:
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        name = f"{models[0]}, {len(models)} cores" if models else name
    return name


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
