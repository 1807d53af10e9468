"""Computes the content of ``result.json`` from the evaluations before and after training. Rates are percentages (0 to 100)."""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from turnwise.console import typed_arguments
from turnwise.evaluation.base_divergence import counted
from turnwise.evaluation.stats import (
    Counted,
    Estimate,
    Reply,
    likelihood,
    paired_change,
    paired_difference,
    paired_mean_difference,
    pass_at_k,
    pooled,
    rate,
)
from turnwise.evaluation.suites import Evaluation, repeat_rate
from turnwise.runs.run_folder import config_hash
from turnwise.training.candidates import Candidates

OF_A_RUN = (":/src", ":/conf", ":/scripts", ":/train.py")  # git pathspecs of the files that a run's result depends on
LIBRARIES = ("turnwise", "torch", "lightning", "transformers", "peft", "hydra-core")
RULES = {"functional": False, "strict": True}

Scores = dict[str, dict[str, list[float]]]
"""Suite -> item -> the scores of its attempts."""


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
    file = candidates.headline
    domains: dict[str, Any] = {"in_domain": in_domain_result(base, after)}
    if file is not None:  # the headline is about the replies in held-out dialogues
        domains = {"environment": domains["in_domain"]} if base.episodes else {}
        domains["in_domain"] = held_out_headline(base, after) if base.replies else {}
    if base.replies:
        domains["held_out"] = held_out_result(base, after)
    if after.general:
        domains["general"] = divergence_result(base, after)
    return {
        "method": cfg.method,
        "env": file or environment,
        "scale": cfg.scale,
        "seed": int(cfg.seed),
        "name": cfg.name,
        **domains,
        "ood": out_of_domain_result(base, after),
        "bad_trajectories": len(candidates.problems),
        **entries,
        "config_hash": config_hash(cfg),
        "command": shlex.join(["python", sys.argv[0], *typed_arguments(sys.argv[1:])]),
        "commit": commit(),
        "versions": {name: _installed(name) for name in LIBRARIES},
        "machine": machine(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _installed(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # Turnwise itself, if PYTHONPATH=src leads to it
        return ""


# -- success on tasks --------------------------------------------------------------------------------------------------


def in_domain_result(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``in_domain`` of ``result.json``: success before and after training, for sampled and for greedy
    attempts. The headline is the comparison of sampled attempts, or without sampled attempts, of greedy attempts.
    """
    modes = {
        mode: found for mode in ("sampled", "greedy") if (found := _tasks(base.success(mode), after.success(mode)))
    }
    headline = next(iter(modes), "sampled")
    splits = sorted({episode.split for episode in base.episodes})
    return {
        **modes.get(headline, {}),
        "decoding": headline,
        "by_split": {name: _tasks(base.success(headline, name), after.success(headline, name)) for name in splits},
        **subset_result(base, after, headline),
        **modes,
        "pass_at_k": _pass_at_k(base.success("sampled"), after.success("sampled")),
    }


def subset_result(base: Evaluation, after: Evaluation, mode: str) -> dict[str, Any]:
    """Returns the comparison of success before and after training for each subset of the benchmark, and for the
    unweighted mean over the subsets. The result is empty if tasks have no subset.
    """
    sides = [{name: dict(sorted(tasks.items())) for name, tasks in e.by_subset(mode).items()} for e in (base, after)]
    before, since = _items_in_both_results(*sides)
    if not before:
        return {}
    first, last = (float(np.mean([_mean(tasks) for tasks in side.values()])) for side in (before, since))
    mean = _change(first, last, paired_mean_difference(before, since)) | {"tasks": sum(map(len, before.values()))}
    return {"by_subset": {name: _tasks(before[name], since[name]) for name in before}, "subset_mean": mean}


def out_of_domain_result(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``ood`` of ``result.json``: the scores on each out-of-domain suite before and after training,
    the change on each suite, and the mean change over the suites. Changes have confidence intervals.
    """
    before, since = _items_in_both_results(base.skills(), after.skills())
    if not before:
        return {}
    change = paired_mean_difference(before, since)
    intervals = {suite: _bounds(paired_difference(before[suite], since[suite])) for suite in before}
    return {
        "base": {suite: _points(_mean(items)) for suite, items in before.items()},
        "after": {suite: _points(_mean(items)) for suite, items in since.items()},
        "mean_change": _points(change.mean),
        "mean_change_ci95": _bounds(change),
        "change_ci95": {suite: interval for suite, interval in intervals.items() if interval},
        "items": {suite: len(items) for suite, items in before.items()},
    }


def _tasks(before: Mapping[str, list[float]], since: Mapping[str, list[float]]) -> dict[str, Any]:
    """Returns the success rates before and after training on the tasks in both evaluations, and the change with a
    paired 95 % confidence interval.
    """
    tasks = sorted(before.keys() & since.keys())
    if not tasks:
        return {}
    before, since = {task: before[task] for task in tasks}, {task: since[task] for task in tasks}
    return _change(_mean(before), _mean(since), paired_difference(before, since)) | {"tasks": len(tasks)}


def _items_in_both_results(before: Scores, since: Scores) -> tuple[Scores, Scores]:
    """Returns ``before`` and ``since`` without items that only one of the two evaluations contains, because the item's
    environment failed in the other evaluation.
    """
    common = {suite: [item for item in items if item in since.get(suite, {})] for suite, items in before.items()}
    first, second = (
        {s: {item: side[s][item] for item in items} for s, items in common.items() if items} for side in (before, since)
    )
    return first, second


def _pass_at_k(before: Mapping[str, list[float]], since: Mapping[str, list[float]]) -> dict[str, Any]:
    if not before or not since:
        return {}

    def at(side: Mapping[str, list[float]], k: int) -> float:
        return _points(pass_at_k([len(s) for s in side.values()], [int(sum(s)) for s in side.values()], k))

    fewest = min(len(scores) for side in (before, since) for scores in side.values())
    return {str(k): {"base": at(before, k), "after": at(since, k)} for k in (1, 2, 4, 8, 16, 32) if k <= fewest}


# -- ratios over held-out dialogues and general questions --------------------------------------------------------------


def held_out_result(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``held_out``: the demonstrated replies' negative log-likelihood per token in nats (``nll``), and
    the percentages of the policy's replies that are ``functional`` and ``strict``.
    """
    before, since = base.replies, after.replies
    mode = _mode(before)
    return {
        "dialogues": len({reply.dialogue for reply in before}),
        "replies": len(before),
        "nll": _ratio(likelihood(before), likelihood(since), 1.0, 4),
        **{name: _ratio(rate(before, mode, rule), rate(since, mode, rule)) for name, rule in RULES.items()},
    }


def held_out_headline(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``in_domain`` of a run on dialogues: the percentages of the replies sampled as in training
    (``sampled``) and of the greedy replies (``greedy``) that the verifier accepts. The headline is the percentage of the
    sampled replies, or without sampled replies, of the greedy replies.
    """
    before, since = base.replies, after.replies
    rates = {mode: (rate(before, mode), rate(since, mode)) for mode in ("sampled", "greedy")}
    modes = {mode: {**_ratio(*sides), "tasks": len(before)} for mode, sides in rates.items() if sides[0]}
    return {**modes[_mode(before)], "decoding": _mode(before), **modes}


def divergence_result(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``general`` of ``result.json``: the divergence from the base model on general questions in nats
    a token, and how often (percent) both find the same token most likely, before and after training.
    """
    sides = {value: (counted(base.general, value), counted(after.general, value)) for value in ("kl", "same")}
    return {
        "questions": len(after.general),
        "tokens": sum(row.tokens for row in after.general),
        "kl": _ratio(*sides["kl"], 1.0, 4),
        "same": _ratio(*sides["same"], 100.0, 4, shares=False),
    }


def _mode(replies: Sequence[Reply]) -> str:
    return "sampled" if rate(replies, "sampled") else "greedy"


def _ratio(
    before: Counted, since: Counted, unit: float = 100.0, digits: int = 2, shares: bool | None = None
) -> dict[str, Any]:
    change = paired_change(before, since, shares=unit == 100 if shares is None else shares)
    return _change(pooled(before), pooled(since), change, unit, digits)


# -- numbers of a result -----------------------------------------------------------------------------------------------


def _change(before: float, since: float, change: Estimate, unit: float = 100.0, digits: int = 2) -> dict[str, Any]:
    base, after = (round(unit * float(value), digits) for value in (before, since))
    interval = _bounds(change, unit, digits)
    return {"base": base, "after": after, "delta": round(after - base, digits), "delta_ci95": interval}


def _bounds(estimate: Estimate, unit: float = 100.0, digits: int = 2) -> list[float] | None:
    low, high = estimate.low, estimate.high
    return (
        None if low is None or high is None else [round(unit * float(low), digits), round(unit * float(high), digits)]
    )


def _mean(scores: Mapping[str, list[float]]) -> float:
    return float(np.mean([np.mean(values) for values in scores.values()]))


def _points(share: float) -> float:
    return round(100 * float(share), 2)


def result_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Returns the metrics ``eval/...`` of one evaluation."""
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
    if evaluation.replies:
        metrics["eval/held_out/nll"] = round(pooled(likelihood(evaluation.replies)), 4)
    for name, rule in RULES.items():
        for mode, suffix in (("sampled", ""), ("greedy", "_greedy")):
            if counts := rate(evaluation.replies, mode, rule):
                metrics[f"eval/held_out/{name}{suffix}"] = _points(pooled(counts))
    return metrics


# -- how the run was made ----------------------------------------------------------------------------------------------


@cache
def commit() -> str:
    """Returns the commit of the git checkout, followed by ``+`` if code or configuration has uncommitted changes, or an
    empty text outside a checkout. Later calls return the value of the first call.
    """

    def git(*words: str) -> str:
        here = Path(__file__).resolve().parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", *OF_A_RUN) else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine() -> str:
    """Returns the name of the processor, with the number of cores where Linux tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else []
    return f"{models[0]}, {len(models)} cores" if models else platform.processor() or platform.machine()
